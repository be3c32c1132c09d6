"""Transfers between the ports of a group of nodes, and which of them are bad. Pure.

MegaScale (arXiv 2402.15627) section 4 tests a machine's own ports against its memory, neighbours under one
ToR, and then machines of different ToRs. So do these rounds: each node sends to two neighbours under its
switch on every rail, and to each other memory node of one of them. Those that are good there send to two
nodes under other switches. Every port sends one transfer and receives one at a time.

A transfer uses parts: the sender's port outwards, the receiver's port inwards, the receiver's memory, and
between switches the uplink of the sender's switch. Parts of a good transfer are good. What is usual is known
from the transfers of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

Kind = Literal["neighbour", "memory", "between"]
Part = tuple[str, str]
"""What it is (out, in, memory, uplink), and its name."""

LEAST_PEERS = 4
"""transfers of a kind that are needed to know what is usual"""
NORMAL_CONSISTENT = 1.4826
MUCH_SLOWER = 0.75
"""of a port's rate. A transfer that can take less says too little of it"""
FULL_SHARE = 0.9
"""of the rate that the slower port has negotiated, which is all that is expected of a transfer"""


@dataclass(frozen=True, kw_only=True)
class LinkTest:
    """What counts as bad."""

    slow_share: float = 0.75
    """a transfer below this share of the usual rate of its kind is slow"""
    deviations: float = 6.0
    """and by so many robust deviations"""
    loss_share: float = 0.01
    """a transfer is lossy above this share of segments that were sent again, and by so many deviations"""


@dataclass(frozen=True, kw_only=True)
class Port:
    """One port of a node on one rail."""

    node: str
    rail: str
    switch: str
    memories: tuple[str, ...] = ()
    """memory nodes of its machine other than the one next to it"""
    own_bits_per_s: float = 0.0
    """that the port itself promises for one transfer (`port_rates.promised`), 0 where that is not known"""
    link_bits_per_s: float = 0.0
    """that the port has negotiated, or what others can take of it. 0 where that is not known"""
    machine: str = ""
    """what kind of machine it is in (`machine_kind`), "" where all are of one kind or that is not known"""

    @property
    def name(self) -> str:
        return f"{self.node}/{self.rail}"

    def memory_name(self, memory: str) -> str:
        """What the way from it to a memory node is called."""
        return f"{self.name} to memory {memory}"


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One transfer. `memory` names the memory node that receives, "" for the one next to the port."""

    kind: Kind
    sender: Port
    receiver: Port
    memory: str = ""

    @property
    def cohort(self) -> str:
        """Transfers with the same are compared. Cards differ from rail to rail, so each rail by itself.

        So do processors, which a stream over TCP needs most: machines of two kinds are compared with the same
        two kinds.
        """
        kind = f"{self.kind} {self.memory}".strip()
        machines = " and ".join(sorted({self.sender.machine, self.receiver.machine} - {""}))
        on = f"{kind} on {self.sender.rail}" if self.sender.rail else kind
        return f"{on}, {machines}" if machines else on

    @property
    def link_bits_per_s(self) -> float:
        """What the slower one of its two ports has negotiated, as far as that is known. 0: it is not."""
        rates = (self.sender.link_bits_per_s, self.receiver.link_bits_per_s)
        return min((rate for rate in rates if rate > 0), default=0.0)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that it needs."""
        parts = [("out", self.sender.name), ("in", self.receiver.name)]
        if self.memory:
            parts.append(("memory", self.receiver.memory_name(self.memory)))
        if self.sender.switch != self.receiver.switch:
            parts.append(("uplink", f"{self.sender.switch}/{self.sender.rail}"))
        return tuple(parts)

    @property
    def proves(self) -> tuple[Part, ...]:
        """What is good if the transfer is good. Of a port that is much faster than the other end too little
        is asked."""
        return tuple(part for part in self.parts if not self._asks_little(part))

    def _asks_little(self, part: Part) -> bool:
        end = {"out": self.sender, "in": self.receiver, "memory": self.receiver}.get(part[0])
        return end is not None and self.link_bits_per_s < MUCH_SLOWER * end.link_bits_per_s


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a transfer came to. `resent_share` is of its segments. `error` is "" where it worked."""

    transfer: Transfer
    bits_per_s: float
    resent_share: float = 0.0
    error: str = ""


def rounds(ports: Sequence[Port]) -> list[list[Transfer]]:
    """All transfers in rounds, of ports that are all good. In each, a port sends and receives once at most.

    The order of `ports` decides who is paired.

    >>> ports = [Port(node=n, rail="r0", switch="s0", memories=("1",)) for n in "abcd"]
    >>> [f"{t.sender.node}{t.receiver.node}{t.memory}" for transfers in rounds(ports) for t in transfers]
    ['ab', 'bc', 'cd', 'da', 'ac', 'bd', 'ca', 'db', 'ab1', 'bc1', 'cd1', 'da1']
    """
    return [*rounds_within(ports), *rounds_between(ports)]


def rounds_within(ports: Sequence[Port]) -> list[list[Transfer]]:
    """The transfers between neighbours under one switch, in rounds.

    The way to a memory node is left out where too few have one to compare.
    """
    cells = _cells(ports)
    planned = [[t for cell in cells.values() for t in _shifted(cell, shift)] for shift in (1, 2)]
    for memory in sorted({memory for port in ports for memory in port.memories}):
        planned += _to_memory(memory, planned[:2])
    return [transfers for transfers in planned if transfers]


def rounds_between(ports: Sequence[Port]) -> list[list[Transfer]]:
    """The transfers to other switches, in rounds."""
    planned = [_between(_cells(ports), shift) for shift in (0, 1)]
    return [transfers for transfers in planned if transfers]


def _cells(ports: Sequence[Port]) -> dict[tuple[str, str], list[Port]]:
    """The ports by rail and switch."""
    cells: dict[tuple[str, str], list[Port]] = {}
    for port in ports:
        cells.setdefault((port.rail, port.switch), []).append(port)
    return cells


def _to_memory(memory: str, neighbours: Sequence[Sequence[Transfer]]) -> list[list[Transfer]]:
    """The rounds between neighbours again, to a memory node of the receivers. The first is enough of many.

    A rail is left out where too few of its transfers could be compared.
    """
    rows = [
        [replace(t, kind="memory", memory=memory) for t in transfers if memory in t.receiver.memories]
        for transfers in neighbours
    ]
    kept: list[list[Transfer]] = [[] for _ in rows]
    for rail in dict.fromkeys(t.receiver.rail for transfers in rows for t in transfers):
        own = [[t for t in transfers if t.receiver.rail == rail] for transfers in rows]
        used = own[:1] if len(own[0]) >= LEAST_PEERS else own
        if sum(map(len, used)) >= LEAST_PEERS:
            for transfers, more in zip(kept, used, strict=False):
                transfers += more
    return kept


def _shifted(cell: Sequence[Port], shift: int) -> list[Transfer]:
    """Each port sends to the one `shift` places further on."""
    if len(cell) <= shift:
        return []
    targets = [*cell[shift:], *cell[:shift]]
    return [Transfer(kind="neighbour", sender=s, receiver=r) for s, r in zip(cell, targets, strict=True)]


def _between(cells: Mapping[tuple[str, str], Sequence[Port]], shift: int) -> list[Transfer]:
    """Each port sends to one under the next switch of its rail."""
    transfers: list[Transfer] = []
    for rail in dict.fromkeys(rail for rail, _ in cells):
        of_rail = [ports for (r, _), ports in cells.items() if r == rail]
        if len(of_rail) < 2:
            continue
        for ports, others in zip(of_rail, [*of_rail[1:], of_rail[0]], strict=True):
            turned = [*others[shift:], *others[:shift]]
            pairs = zip(ports, turned, strict=False)
            transfers += [Transfer(kind="between", sender=s, receiver=r) for s, r in pairs]
    return transfers


def merged(measured: Iterable[Measured]) -> list[Measured]:
    """One entry for each transfer: its best rate and its least loss. An error counts where nothing worked."""
    best: dict[Transfer, Measured] = {}
    for m in measured:
        before = best.get(m.transfer)
        if before is None or (before.error and not m.error):
            best[m.transfer] = m
        elif not m.error:
            rate, lost = max(before.bits_per_s, m.bits_per_s), min(before.resent_share, m.resent_share)
            best[m.transfer] = Measured(transfer=m.transfer, bits_per_s=rate, resent_share=lost)
    return list(best.values())


def faults(measured: Sequence[Measured], test: LinkTest | None = None) -> list[str]:
    """Why each measurement is bad, "" where it is not. What is usual is that of the best of each transfer."""
    test, usual = test or LinkTest(), _usual(merged(measured))
    return [_fault(m, usual[m.transfer.cohort], test) for m in measured]


@dataclass(frozen=True, kw_only=True)
class _Usual:
    """Median and robust deviation of one cohort, over the better half, as the others may be bad."""

    rate: float
    rate_deviation: float
    loss: float
    loss_deviation: float


def _usual(measured: Sequence[Measured]) -> dict[str, _Usual | None]:
    """What is usual for each cohort, None where too few are known."""
    usual: dict[str, _Usual | None] = {}
    for cohort in dict.fromkeys(m.transfer.cohort for m in measured):
        worked = [m for m in measured if m.transfer.cohort == cohort and not m.error]
        usual[cohort] = None
        if len(worked) >= LEAST_PEERS:
            half = (len(worked) + 1) // 2
            rate, rate_deviation = _spread(sorted((m.bits_per_s for m in worked), reverse=True)[:half])
            loss, loss_deviation = _spread(sorted(m.resent_share for m in worked)[:half])
            usual[cohort] = _Usual(
                rate=rate, rate_deviation=rate_deviation, loss=loss, loss_deviation=loss_deviation
            )
    return usual


def _spread(values: Sequence[float]) -> tuple[float, float]:
    middle = median(values)
    return middle, NORMAL_CONSISTENT * median(abs(value - middle) for value in values)


def _fault(measured: Measured, usual: _Usual | None, test: LinkTest) -> str:
    """Why a transfer is bad, "" where it is not."""
    if measured.error or usual is None:
        return measured.error
    if measured.resent_share > max(test.loss_share, usual.loss + test.deviations * usual.loss_deviation):
        return f"{measured.resent_share:.1%} of the segments were lost"
    own = FULL_SHARE * measured.transfer.link_bits_per_s
    rate = min(usual.rate, own) if own else usual.rate  # others may have faster ports
    slow = min(test.slow_share * rate, usual.rate - test.deviations * usual.rate_deviation)
    return f"{measured.bits_per_s / usual.rate:.0%} of the usual rate" if measured.bits_per_s < slow else ""
