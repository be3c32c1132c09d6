"""Rounds of transfers between a job's nodes: asks the agents, hands their figures to the search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics.link_search import LEAST_NODES, LinkSearch, SearchVerdict
from pulsetrain.diagnostics.link_tests import Measured, Port, Transfer
from pulsetrain.diagnostics.port_rates import promised
from pulsetrain.protocol.messages import Command, Hello, LinkSend, LinkSink, Reply

BITS_PER_MBIT = 1e6
RAIL = "net"
"""The one port of a node that the hub knows: the address that its agent is reached at."""
MARGIN_S = 8.0  # for the way of a command, the fork of its worker, and its reply
LEAST_ROUND_S = 3.0  # a round that would have less time is not begun


class LinkNode(Protocol):
    """A node that can be asked."""

    @property
    def name(self) -> str: ...
    @property
    def hello(self) -> Hello: ...
    async def ask(self, command: Command, timeout_s: float) -> Reply: ...


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """How links are measured. Raises `ValueError` for what cannot be."""

    seconds: float = 0.5
    """of each transfer"""
    bits_per_s: float = 0.0
    """that a transfer takes at most, 0 for no limit. A link that carries as much then looks good."""
    limit_s: float = 40.0
    """for all rounds together"""

    def __post_init__(self) -> None:
        if not 0.2 <= self.seconds <= 10:
            raise ValueError(f"seconds = {self.seconds:g}: allowed 0.2 to 10")
        if self.bits_per_s < 0:
            raise ValueError(f"bits_per_s = {self.bits_per_s:g}: allowed 0 or more")


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """What the rounds over links came to. `silent` maps nodes that did not take part to the reason."""

    verdict: SearchVerdict
    nodes: Sequence[str] = field(default_factory=tuple)
    silent: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def detail(self) -> dict[str, object]:
        """The report as the detail of a `link_check` event."""
        return {
            "state": self.verdict.state,
            "named": [culprit.row() for culprit in self.verdict.culprits],
            "reason": self.verdict.reason,
            "rounds": self.verdict.rounds,
            "transfers": self.verdict.transfers,
            "nodes": list(self.nodes),
            "silent": dict(self.silent),
            "seconds": round(self.seconds, 3),
        }


async def run(
    nodes: Sequence[LinkNode],
    ids: Callable[[], int],
    options: LinkOptions | None = None,
    *,
    now_s: Callable[[], float] = time.monotonic,
) -> LinkReport:
    """Let nodes send to each other in rounds, and say what is bad.

    A node that cannot be asked is left out and named in `silent`. With fewer than three others nothing is
    said.
    """
    options, began_s = options or LinkOptions(), now_s()
    rounds = _Rounds(nodes, ids, options)
    try:
        await rounds.open()
        report = await rounds.search(began_s + options.limit_s, now_s)
    finally:
        await rounds.close()
    return LinkReport(
        verdict=report,
        nodes=sorted(rounds.ports),
        silent=dict(sorted(rounds.silent.items())),
        seconds=now_s() - began_s,
    )


class _Rounds:
    """The sinks of one check, and the transfers to them."""

    def __init__(self, nodes: Sequence[LinkNode], ids: Callable[[], int], options: LinkOptions) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._ids, self._options = ids, options
        self.ports: dict[str, int] = {}
        self._memory_ports: dict[str, dict[str, int]] = {}
        self.silent: dict[str, str] = {}
        self._speeds: dict[str, float] = {}
        self._streams: dict[str, float] = {}

    async def open(self) -> None:
        """Have every node open a sink."""
        life_s = self._options.limit_s + MARGIN_S
        for name, reply in (await self._sinks(life_s)).items():
            if reply.error or not reply.data.get("port"):
                self.silent[name] = reply.error or "it opened no port"
            else:
                self.ports[name] = int(reply.data["port"])
                others = reply.data.get("memory_ports") or {}
                self._memory_ports[name] = {str(node): int(port) for node, port in others.items()}
                self._speeds[name] = float(reply.data.get("speed_bits_per_s", 0.0))

    async def close(self) -> None:
        """End the sinks. One that does not hear of it ends by itself."""
        await self._sinks(0.0)

    async def _sinks(self, seconds: float) -> dict[str, Reply]:
        replies = await asyncio.gather(
            *(n.ask(LinkSink(id=self._ids(), seconds=seconds), MARGIN_S) for n in self._nodes.values())
        )
        return dict(zip(self._nodes, replies, strict=True))

    async def search(self, end_s: float, now_s: Callable[[], float]) -> SearchVerdict:
        """Measure in rounds until nothing is open, or the time is up."""
        if len(self.ports) < LEAST_NODES:
            return SearchVerdict(reason=f"only {len(self.ports)} nodes take part; {LEAST_NODES} are needed")
        await self._send_to_themselves()
        search = LinkSearch([self._port(name) for name in sorted(self.ports)])
        while end_s - now_s() >= LEAST_ROUND_S and (planned := search.next_round()):
            measured = await asyncio.gather(*(self._measure(transfer) for transfer in planned))
            search.take([m for m in measured if m is not None and not self._silent(m.transfer)])
        return self._without_silent(search.verdict())

    def _port(self, name: str) -> Port:
        memories = tuple(sorted(self._memory_ports[name]))
        return Port(
            node=name,
            rail=RAIL,
            switch=self._nodes[name].hello.switch,
            memories=memories,
            own_bits_per_s=self._own_rate(name),
        )

    async def _send_to_themselves(self) -> None:
        """Measure one stream inside each machine whose port has a rate. Over TCP a port promises no more."""
        names = [name for name, speed in self._speeds.items() if speed > 0]
        commands = [
            LinkSend(
                id=self._ids(),
                address=self._nodes[name].hello.address,
                port=self.ports[name],
                seconds=self._options.seconds,
                bits_per_s=self._options.bits_per_s,
            )
            for name in names
        ]
        replies = await asyncio.gather(
            *(
                self._nodes[name].ask(command, command.seconds + MARGIN_S)
                for name, command in zip(names, commands, strict=True)
            )
        )
        for name, reply in zip(names, replies, strict=True):
            self._streams[name] = 0.0 if reply.error else float(reply.data.get("bits_per_s", 0.0))

    def _own_rate(self, name: str) -> float:
        """What a node's port promises for one transfer, 0 where that is not known."""
        stream = self._streams.get(name, 0.0)
        return promised(self._speeds[name], stream, self._options.bits_per_s) if stream > 0 else 0.0

    def _silent(self, transfer: Transfer) -> bool:
        return bool({transfer.sender.node, transfer.receiver.node} & self.silent.keys())

    def _without_silent(self, verdict: SearchVerdict) -> SearchVerdict:
        """An agent that ended meanwhile makes its links look broken. That says nothing about them."""
        kept = [c for c in verdict.culprits if c.node not in self.silent]
        left = [f"{c.name}: its agent did not answer" for c in verdict.culprits if c.node in self.silent]
        reason = "; ".join(why for why in (verdict.reason, *left) if why)
        return replace(verdict, culprits=tuple(kept), reason=reason)

    async def _measure(self, transfer: Transfer) -> Measured | None:
        """One transfer. None where the sender's agent did not do it, which says nothing about a link."""
        sender, receiver = transfer.sender.node, transfer.receiver.node
        if self._silent(transfer):
            return None
        memory = transfer.memory
        command = LinkSend(
            id=self._ids(),
            address=self._nodes[receiver].hello.address,
            port=self._memory_ports[receiver][memory] if memory else self.ports[receiver],
            seconds=self._options.seconds,
            bits_per_s=self._options.bits_per_s,
        )
        reply = await self._nodes[sender].ask(command, self._options.seconds + MARGIN_S)
        if reply.error:
            self.silent[sender] = reply.error
            return None
        return _measured(transfer, reply.data)


def _measured(transfer: Transfer, data: JsonObject) -> Measured:
    return Measured(
        transfer=transfer,
        bits_per_s=float(data.get("bits_per_s", 0.0)),
        resent_share=float(data.get("resent_share", 0.0)),
        error=str(data.get("error", "")),
    )
