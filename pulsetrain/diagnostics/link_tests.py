"""Which port, memory node or uplink of a group of nodes is bad, from transfers between them. Pure.

MegaScale (arXiv 2402.15627) section 4 tests a machine's own ports against its memory, neighbours under one
ToR, and then machines of different ToRs. So do these rounds: each node sends to two neighbours under its
switch on every rail, to the other memory node of one of them, and to two nodes under other switches. Every
port sends one transfer and receives one at a time.

A transfer uses parts: the sender's port outwards, the receiver's port inwards, the receiver's memory, and
between switches the uplink of the sender's switch. Parts of a good transfer are good. Of the others those are
at fault that explain the bad transfers with the fewest parts. What is usual is known from the transfers of
the same kind. A busy processor makes any transfer slower, and a bad link makes all of them slow. So what
looks bad is measured again, and the best counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Kind = Literal["neighbour", "memory", "between"]
Part = tuple[str, str]
"""What it is (out, in, memory, uplink), and its name."""

REPEATS = 2
"""times that a transfer is measured again at most"""
LEAST_PEERS = 4
"""transfers of a kind that are needed to know what is usual"""
NORMAL_CONSISTENT = 1.4826


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

    @property
    def name(self) -> str:
        return f"{self.node}/{self.rail}"


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One transfer. `memory` names the memory node that receives, "" for the one next to the port."""

    kind: Kind
    sender: Port
    receiver: Port
    memory: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that it needs."""
        parts = [("out", self.sender.name), ("in", self.receiver.name)]
        if self.memory:
            parts.append(("memory", f"{self.receiver.name} to memory {self.memory}"))
        if self.sender.switch != self.receiver.switch:
            parts.append(("uplink", f"{self.sender.switch}/{self.sender.rail}"))
        return tuple(parts)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a transfer came to. `resent_share` is of its segments. `error` is "" where it worked."""

    transfer: Transfer
    bits_per_s: float
    resent_share: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class LinkVerdict:
    """What is at fault. `ports`, `memories` and `uplinks` map names to reasons, and `nodes` those whose ports
    are all bad. `reason` says why something is not known, "" where all is."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, str] = field(default_factory=dict)
    memories: Mapping[str, str] = field(default_factory=dict)
    uplinks: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        """Everything that is named, in order."""
        groups = (self.nodes, self.ports, self.memories, self.uplinks)
        return tuple(sorted(name for group in groups for name in group))


def rounds(ports: Sequence[Port], *, memory: str = "") -> list[list[Transfer]]:
    """The transfers in rounds. In each, a port sends and receives once at most.

    `memory` names the other memory node, "" where there is none. The order of `ports` decides who is paired.
    """
    cells: dict[tuple[str, str], list[Port]] = {}
    for port in ports:
        cells.setdefault((port.rail, port.switch), []).append(port)
    planned = [
        [t for cell in cells.values() for t in _shifted(cell, shift, "neighbour", "")] for shift in (1, 2)
    ]
    if memory:
        planned.append([t for cell in cells.values() for t in _shifted(cell, 1, "memory", memory)])
    planned += [_between(cells, shift) for shift in (0, 1)]
    return [transfers for transfers in planned if transfers]


def _shifted(cell: Sequence[Port], shift: int, kind: Kind, memory: str) -> list[Transfer]:
    """Each port sends to the one `shift` places further on."""
    if len(cell) <= shift:
        return []
    targets = [*cell[shift:], *cell[:shift]]
    return [
        Transfer(kind=kind, sender=s, receiver=r, memory=memory) for s, r in zip(cell, targets, strict=True)
    ]


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


def again(measured: Sequence[Measured], test: LinkTest | None = None) -> list[list[Transfer]]:
    """Rounds that measure what looks bad again, `REPEATS` times at most. Each port is once in each round."""
    test = test or LinkTest()
    counts = Counter(m.transfer for m in measured)
    best = merged(measured)
    usual = _usual(best)
    left = [m.transfer for m in best if counts[m.transfer] <= REPEATS and _doubtful(m, usual, test)]
    planned: list[list[Transfer]] = []
    while left:
        taken: set[tuple[str, str]] = set()
        chosen: list[Transfer] = []
        for transfer in left:
            ends = {("out", transfer.sender.name), ("in", transfer.receiver.name)}
            if not ends & taken:
                taken |= ends
                chosen.append(transfer)
        planned.append(chosen)
        left = [transfer for transfer in left if transfer not in chosen]
    return planned


def _doubtful(measured: Measured, usual: Mapping[Kind, _Usual | None], test: LinkTest) -> bool:
    known = usual[measured.transfer.kind]
    if measured.error or known is None:
        return bool(measured.error)
    slow = measured.bits_per_s < test.slow_share * known.rate
    return slow or measured.resent_share > test.loss_share


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


def judge(
    measured: Iterable[Measured], downs: Mapping[str, int] | None = None, test: LinkTest | None = None
) -> LinkVerdict:
    """Name what is at fault. `downs` is how often each port went down meanwhile, by name.

    A port that went down flaps, and transfers that need it say nothing about others.

    >>> ports = [Port(node=n, rail="r0", switch="s0") for n in "abcd"]
    >>> done = [Measured(transfer=t, bits_per_s=5e9 if "c" in (t.sender.node, t.receiver.node) else 1e10)
    ...         for transfers in rounds(ports) for t in transfers]
    >>> judge(done).named
    ('c/r0',)
    """
    test = test or LinkTest()
    flaps = {name: f"went down {count} times" for name, count in (downs or {}).items() if count > 0}
    done = [
        m for m in merged(measured) if not {m.transfer.sender.name, m.transfer.receiver.name} & flaps.keys()
    ]
    usual = _usual(done)
    bad = {i: why for i, m in enumerate(done) if (why := _fault(m, usual.get(m.transfer.kind), test))}
    good = {part for i, m in enumerate(done) if i not in bad for part in m.transfer.parts}
    guilty, unclear = _fewest({i: set(done[i].transfer.parts) - good for i in bad})
    reasons = {part: bad[min(indexes)] for part, indexes in guilty.items()}
    names = {port.name: port for m in done for port in (m.transfer.sender, m.transfer.receiver)}
    ports = flaps | {name: why for (what, name), why in reasons.items() if what in ("out", "in")}
    nodes = _whole_nodes(ports, names.values())
    lacking = [f"{kind}: fewer than {LEAST_PEERS} transfers to compare" for kind, u in usual.items() if not u]
    return LinkVerdict(
        nodes=nodes,
        ports={n: why for n, why in ports.items() if n not in names or names[n].node not in nodes},
        memories={name: why for (what, name), why in reasons.items() if what == "memory"},
        uplinks={name: why for (what, name), why in reasons.items() if what == "uplink"},
        reason="no transfer was measured"
        if not done
        else "; ".join([*lacking, *(f"{done[i].transfer.parts}: {bad[i]}" for i in unclear)]),
    )


def faults(measured: Sequence[Measured], test: LinkTest | None = None) -> list[str]:
    """Why each measurement is bad, "" where it is not. What is usual is that of the best of each transfer."""
    test, usual = test or LinkTest(), _usual(merged(measured))
    return [_fault(m, usual[m.transfer.kind], test) for m in measured]


@dataclass(frozen=True, kw_only=True)
class _Usual:
    """Median and robust deviation of one kind of transfer, over the better half, as the others may be bad."""

    rate: float
    rate_deviation: float
    loss: float
    loss_deviation: float


def _usual(measured: Sequence[Measured]) -> dict[Kind, _Usual | None]:
    """What is usual for each kind, None where too few are known."""
    usual: dict[Kind, _Usual | None] = {}
    for kind in dict.fromkeys(m.transfer.kind for m in measured):
        worked = [m for m in measured if m.transfer.kind == kind and not m.error]
        usual[kind] = None
        if len(worked) >= LEAST_PEERS:
            half = (len(worked) + 1) // 2
            rate, rate_deviation = _spread(sorted((m.bits_per_s for m in worked), reverse=True)[:half])
            loss, loss_deviation = _spread(sorted(m.resent_share for m in worked)[:half])
            usual[kind] = _Usual(
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
    slow = min(test.slow_share * usual.rate, usual.rate - test.deviations * usual.rate_deviation)
    return f"{measured.bits_per_s / usual.rate:.0%} of the usual rate" if measured.bits_per_s < slow else ""


def _fewest(unexplained: Mapping[int, set[Part]]) -> tuple[dict[Part, set[int]], list[int]]:
    """Parts that explain all bad transfers, always the one that explains most next, and the rest.

    Where two parts explain as much, the one nearest to the sender is taken.
    """
    order = {"out": 0, "in": 1, "memory": 2, "uplink": 3}
    left = {i: parts for i, parts in unexplained.items() if parts}
    guilty: dict[Part, set[int]] = {}
    while left:
        counts: dict[Part, set[int]] = {}
        for i, parts in left.items():
            for part in parts:
                counts.setdefault(part, set()).add(i)
        part = min(counts, key=lambda p: (-len(counts[p]), order[p[0]], p[1]))
        guilty[part] = counts[part]
        left = {i: parts for i, parts in left.items() if i not in counts[part]}
    return guilty, sorted(i for i, parts in unexplained.items() if not parts)


def _whole_nodes(ports: Mapping[str, str], known: Iterable[Port]) -> dict[str, str]:
    """Nodes that have two ports or more, all of which are bad."""
    by_node: dict[str, set[str]] = {}
    for port in known:
        by_node.setdefault(port.node, set()).add(port.name)
    return {
        node: "; ".join(ports[name] for name in sorted(names))
        for node, names in by_node.items()
        if len(names) > 1 and names <= ports.keys()
    }
