"""Rounds of transfers between a job's nodes: asks the agents, hands their figures to the search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import rdma_transfers
from pulsetrain.diagnostics.link_search import LEAST_NODES, Culprit, LinkSearch, SearchVerdict
from pulsetrain.diagnostics.link_tests import Measured, Port, Transfer
from pulsetrain.diagnostics.port_rates import STREAM_SHARE, promised
from pulsetrain.protocol.messages import Command, Hello, LinkSend, LinkSink, Reply
from pulsetrain.recovery.link_transport import RAIL, OpenPorts, Transport, port, tcp_rails, transport

BITS_PER_MBIT = 1e6
MARGIN_S = 8.0  # for the way of a command, the fork of its worker, and its reply
RDMA_MARGIN_S = MARGIN_S + rdma_transfers.MARGIN_S
CLOSE_S = 2.0  # for nodes to say that their sinks have ended
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
    """What the rounds over links came to, and whether they went by RDMA.

    `silent` maps nodes that did not take part to the reason. `rails` are the interfaces besides the agents'
    own ports that were measured over TCP, with what is not known of them, "" for nothing. `unmeasured` are
    those that were not.
    """

    verdict: SearchVerdict
    nodes: Sequence[str] = field(default_factory=tuple)
    silent: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    transport: Transport = field(default_factory=Transport)
    rails: Mapping[str, str] = field(default_factory=dict)
    unmeasured: Sequence[str] = ()

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
            "transport": self.transport.name,
            "rdma_ports": list(self.transport.rails),
            "why_tcp": self.transport.why_tcp,
            "rails": dict(self.rails),
            "unmeasured": list(self.unmeasured),
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
        nodes=sorted(rounds.opened),
        silent=dict(sorted(rounds.silent.items())),
        seconds=now_s() - began_s,
        transport=rounds.transport,
        rails=rounds.rails,
        unmeasured=rounds.unmeasured,
    )


class _Rounds:
    """The sinks of one check, and the transfers to them."""

    def __init__(self, nodes: Sequence[LinkNode], ids: Callable[[], int], options: LinkOptions) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._ids, self._options = ids, options
        self.opened: dict[str, OpenPorts] = {}
        self.silent: dict[str, str] = {}
        self._streams: dict[str, float] = {}
        self.transport = Transport()
        self.rails: dict[str, str] = {}

    @property
    def unmeasured(self) -> list[str]:
        """Interfaces of any node that nothing was sent over."""
        others = {name for opened in self.opened.values() for name in opened.others}
        return [] if self.transport.rails else sorted(others - self.rails.keys())

    async def open(self) -> None:
        """Have every node open a sink."""
        life_s = self._options.limit_s + RDMA_MARGIN_S
        for name, reply in (await self._sinks(list(self._nodes), life_s, MARGIN_S)).items():
            if reply.error or not reply.data.get("port"):
                self.silent[name] = reply.error or "it opened no port"
            else:
                self.opened[name] = OpenPorts.of(reply.data)

    async def close(self) -> None:
        """End the sinks. One that does not hear of it ends by itself, so nobody waits for it long."""
        await self._sinks(list(self.opened), 0.0, CLOSE_S)

    async def _sinks(self, names: Sequence[str], seconds: float, wait_s: float) -> dict[str, Reply]:
        replies = await asyncio.gather(
            *(self._nodes[n].ask(LinkSink(id=self._ids(), seconds=seconds), wait_s) for n in names)
        )
        return dict(zip(names, replies, strict=True))

    async def search(self, end_s: float, now_s: Callable[[], float]) -> SearchVerdict:
        """Measure in rounds until nothing is open, or the time is up.

        By RDMA where all nodes can. Where none could do it after all, once more by TCP.
        """
        if len(self.opened) < LEAST_NODES:
            return SearchVerdict(reason=f"only {len(self.opened)} nodes take part; {LEAST_NODES} are needed")
        self.transport, silent = transport(self.opened), dict(self.silent)
        verdict = await self._search(self.transport.rails or (RAIL,), end_s, now_s)
        failed = [f"{name}: {why}" for name, why in self.silent.items() if name not in silent]
        if self.transport.rails and failed and not verdict.transfers:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            self.transport, self.silent = Transport(why_tcp=failed[0] + more), silent
            verdict = await self._search((RAIL,), end_s, now_s)
        return verdict if self.transport.rails else await self._with_rails(verdict, end_s, now_s)

    async def _search(self, rails: Sequence[str], end_s: float, now_s: Callable[[], float]) -> SearchVerdict:
        if RAIL in rails:
            await self._send_to_themselves()
        search = LinkSearch([self._port(name, rail) for rail in rails for name in sorted(self.opened)])
        return await self._rounds_of(search, end_s, now_s)

    async def _with_rails(
        self, verdict: SearchVerdict, end_s: float, now_s: Callable[[], float]
    ) -> SearchVerdict:
        """The verdict with what is bad on the other interfaces. They are measured when that is known.

        All of them at the same time, each by itself. What is not known of them does not make the verdict on
        the agents' own ports doubtful.
        """
        rails = tcp_rails(self.opened)
        found = await asyncio.gather(
            *(self._rail(rail, nodes, end_s, now_s) for rail, nodes in rails.items())
        )
        culprits = [_on_rail(c, rail) for rail, more in zip(rails, found, strict=True) for c in more.culprits]
        return replace(
            verdict,
            culprits=(*verdict.culprits, *culprits),
            rounds=verdict.rounds + max((more.rounds for more in found), default=0),
            transfers=verdict.transfers + sum(more.transfers for more in found),
        )

    async def _rail(
        self, rail: str, nodes: Sequence[str], end_s: float, now_s: Callable[[], float]
    ) -> SearchVerdict:
        """Search one interface of these nodes. Where it does not join them nothing was measured."""
        search = LinkSearch([self._port(name, rail) for name in nodes])
        verdict = await self._rounds_of(search, end_s, now_s, least=LEAST_NODES)
        if verdict.transfers >= LEAST_NODES:
            self.rails[rail] = verdict.reason
            return verdict
        return SearchVerdict()

    async def _rounds_of(
        self, search: LinkSearch, end_s: float, now_s: Callable[[], float], *, least: int = 0
    ) -> SearchVerdict:
        """Rounds until nothing is open. It ends where the first one has fewer than `least` transfers."""
        while end_s - now_s() >= LEAST_ROUND_S and (planned := search.next_round()):
            try:
                async with asyncio.timeout(end_s - now_s()):
                    measured = await asyncio.gather(*(self._measure(transfer) for transfer in planned))
            except TimeoutError:
                break  # what this round has measured so far is not comparable
            taken = [m for m in measured if m is not None and not self._silent(m.transfer)]
            search.take(taken)
            if len(taken) < least and search.rounds == 1:
                break
        return self._without_silent(search.verdict())

    def _port(self, name: str, rail: str) -> Port:
        made = port(name, rail, self._nodes[name].hello.switch, self.opened[name])
        machines = {opened.machine for opened in self.opened.values()}
        differ = len(machines) > 1 and "" not in machines  # an agent of an earlier version does not say it
        machine = self.opened[name].machine if differ else ""
        return replace(made, own_bits_per_s=self._own_rate(name, rail), machine=machine)

    async def _send_to_themselves(self) -> None:
        """Measure one stream inside each machine whose port has a rate. Over TCP it bounds that rate."""
        names = [name for name, opened in self.opened.items() if opened.speeds.get(RAIL)]
        commands = [
            LinkSend(
                id=self._ids(),
                address=self._nodes[name].hello.address,
                port=self.opened[name].tcp_port,
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

    def _own_rate(self, name: str, rail: str) -> float:
        """What a node's port promises for one transfer, 0 where that is not known."""
        if rail != RAIL and not self.transport.rails:
            return 0.0  # by TCP, and no stream inside the machine bounds it
        speed = self.opened[name].speeds.get(rail, 0.0)
        stream = STREAM_SHARE * self._streams.get(name, 0.0) if rail == RAIL else speed
        known = speed > 0 and stream > 0
        return promised(speed, stream, self._options.bits_per_s) if known else 0.0

    def _silent(self, transfer: Transfer) -> bool:
        return bool({transfer.sender.node, transfer.receiver.node} & self.silent.keys())

    def _without_silent(self, verdict: SearchVerdict) -> SearchVerdict:
        """An agent that ended meanwhile makes its links look broken. That says nothing about them."""
        kept = [c for c in verdict.culprits if c.node not in self.silent]
        left = [f"{c.name}: its agent did not answer" for c in verdict.culprits if c.node in self.silent]
        reason = "; ".join(why for why in (verdict.reason, *left) if why)
        return replace(verdict, culprits=tuple(kept), reason=reason)

    async def _measure(self, transfer: Transfer) -> Measured | None:
        """One transfer. None where one of the nodes did not do it, which says nothing about a link."""
        sender, receiver = transfer.sender.node, transfer.receiver.node
        if self._silent(transfer):
            return None
        command = self._command(transfer)
        margin_s = RDMA_MARGIN_S if command.rdma_port else MARGIN_S
        reply = await self._nodes[sender].ask(command, self._options.seconds + margin_s)
        unmeasured = str(reply.data.get("unmeasured", ""))
        if command.rail and unmeasured:
            return None  # it says nothing about the node's other ports
        if reply.error or unmeasured:
            self.silent[sender if reply.error else receiver] = reply.error or unmeasured
            return None
        return _measured(transfer, reply.data)

    def _command(self, transfer: Transfer) -> LinkSend:
        receiver, memory = transfer.receiver.node, transfer.memory
        opened, rail = self.opened[receiver], transfer.receiver.rail
        if rail in opened.rails and not self.transport.rails:
            address, port = opened.rails[rail]
            return LinkSend(
                id=self._ids(),
                address=address,
                port=port,
                seconds=self._options.seconds,
                bits_per_s=self._options.bits_per_s,
                rail=rail,
            )
        rdma = rail != RAIL
        tcp_port = opened.memory_ports[memory] if memory and not rdma else opened.tcp_port
        return LinkSend(
            id=self._ids(),
            address=self._nodes[receiver].hello.address,
            port=opened.rdma_port if rdma else tcp_port,
            seconds=self._options.seconds,
            bits_per_s=self._options.bits_per_s,
            rdma_port=transfer.receiver.rail if rdma else "",
            memory=memory if rdma else "",
        )


def _on_rail(culprit: Culprit, rail: str) -> Culprit:
    """What was named on one of several interfaces: never the whole node."""
    if culprit.kind == "node":
        culprit = replace(culprit, kind="port", name=f"{culprit.node}/{rail}")
    return replace(culprit, only_told=True)


def _measured(transfer: Transfer, data: JsonObject) -> Measured:
    return Measured(
        transfer=transfer,
        bits_per_s=float(data.get("bits_per_s", 0.0)),
        resent_share=float(data.get("resent_share", 0.0)),
        error=str(data.get("error", "")),
    )
