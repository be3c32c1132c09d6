"""Ports that stay far below their own rate. Pure.

Peers say what is usual, and nothing where all of them are slow alike: the same wrong setting, the same narrow
PCIe slot. A port's own rate does. It is what the kernel says that the port has negotiated. Over TCP one
stream may not reach that, as a processor copies every byte twice. So a machine also sends to itself, and a
port promises no more than half of that.

Of transfers to other switches nothing is said, as uplinks are often made for less than all ports together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pulsetrain.diagnostics.link_tests import Measured, Port

LEAST_SHARE = 0.5
"""of what both ports promise. A healthy port reaches nine tenths by RDMA, and less over TCP"""
STREAM_SHARE = 0.5
"""of a stream inside the machine, that one through a port promises. Inside, packets have 64 KiB. A port cuts
them to 1,500 bytes or 9,000, and to put these together again takes the processor's time"""
LEAST_PARTNERS = 2
"""with whom a port is slow: one of them may be the slow one"""


def promised(*rates: float) -> float:
    """What a transfer may reach at least one of these rates: the smallest that is known, 0 for none.

    >>> promised(100e9, 24e9, 0.0), promised(0.0)
    (24000000000.0, 0.0)
    """
    return min((rate for rate in rates if rate > 0), default=0.0)


def below_own_rate(measured: Iterable[Measured]) -> dict[str, Mapping[str, str]]:
    """Map each port that is far below its own rate to the reason, by direction ("in", "out").

    A transfer counts only if its other port promises as much. The best one of a direction counts, and there
    must be some with two others.
    """
    ways: dict[tuple[Port, str], list[Measured]] = {}
    for m in measured:
        sender, receiver = m.transfer.sender, m.transfer.receiver
        if m.transfer.kind != "neighbour" or m.error:
            continue
        for port, other, way in ((sender, receiver, "out"), (receiver, sender, "in")):
            if 0 < port.own_bits_per_s <= other.own_bits_per_s:
                ways.setdefault((port, way), []).append(m)
    found: dict[str, dict[str, str]] = {}
    for (port, way), own in ways.items():
        best = max(m.bits_per_s for m in own)
        if len(_partners(port, own)) >= LEAST_PARTNERS and best < LEAST_SHARE * port.own_bits_per_s:
            found.setdefault(port.name, {})[way] = _reason(best, port)
    return dict(found)


def _partners(port: Port, own: Sequence[Measured]) -> set[str]:
    return {end.node for m in own for end in (m.transfer.sender, m.transfer.receiver)} - {port.node}


def _reason(best: float, port: Port) -> str:
    return f"{best / port.own_bits_per_s:.0%} of its own {port.own_bits_per_s / 1e9:.3g} Gbit/s"
