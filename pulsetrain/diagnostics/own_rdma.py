"""Sends by RDMA from one card's port to the next one of this machine.

Two ports of one fabric reach each other through its switches. Ports of separate fabrics do not, so a failure
says nothing about a port: the way is not measurable then. No rate fails a node either: the way may cross
links between switches that are made for less than all ports together, and all nodes send at once. So the rate
is told beside what the slower port has negotiated, and compared with the same way on other nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import rdma_transfers
from pulsetrain.diagnostics.measurement import Check
from pulsetrain.diagnostics.perftest import Ended, RdmaEnd
from pulsetrain.diagnostics.port_rates import promised

Send = Callable[..., Ended]
MOST_WAYS = 8
"""because each takes more than two seconds"""
COMPARED = 0.0
"""as a limit: every rate passes, and the hub compares it with those of other nodes"""
BEGIN_S = 19.0
"""after which no transfer begins. One that fails may take ten seconds, and who asked does not wait for all"""


def checks(
    ports: Sequence[JsonObject],
    seconds: float,
    send: Send = rdma_transfers.between_own,
    now_s: Callable[[], float] = time.monotonic,
) -> list[Check]:
    """One check for each port that sends to the next one, and the last to the first.

    `ports` have the fields "name", "end" (those of an `RdmaEnd`) and "bits_per_s" (0: not known). None where
    there are no two ports.
    """
    ring = list(pairwise([*ports, *ports[:1]])) if len(ports) > 1 else []
    end_s = now_s() + BEGIN_S
    return [
        _check(sender, receiver, seconds, send if now_s() < end_s else _too_late)
        for sender, receiver in ring[:MOST_WAYS]
    ]


def _too_late(*_: RdmaEnd, seconds: float) -> Ended:
    return Ended(failure=f"no time was left for {seconds:g} s")


def _check(sender: JsonObject, receiver: JsonObject, seconds: float, send: Send) -> Check:
    name = f"port_{sender['name']}_to_{receiver['name']}"
    ended = send(RdmaEnd(**sender["end"]), RdmaEnd(**receiver["end"]), seconds=min(seconds, 1.0))
    if ended.failure:
        return Check(name=name, value=0.0, unit="B/s", detail=f"not measurable: {ended.failure}")
    rates = [float(port["bits_per_s"]) for port in (sender, receiver)]
    share = f", {ended.bits_per_s / promised(*rates):.0%} of the slower port's own rate" if all(rates) else ""
    value = ended.bits_per_s / 8
    return Check(name=name, value=value, unit="B/s", limit=COMPARED, detail=f"RDMA{share}")
