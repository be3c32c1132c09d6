"""Who is to blame when nobody moves: a wait-for graph over process groups and point-to-point edges.

A rank waits for the members of a collective that have not enqueued it, or for the peer of a send or recv.
Blame flows along the edges; what waits for nobody, and is waited for, is at fault. A knot of ranks that wait
for each other is a mismatch (desync), or a transfer that does not move (network), unless evidence about the
processes themselves (stopped, gone, silent) singles one out. Live reports, Flight Recorder dumps and NCCL RAS
are turned into the same `Witness` rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

HangVerdict = Literal["rank", "network", "desync", "none", "uncertain"]
Key = tuple[str, tuple[int, ...]]  # a process group: its name and its sorted members

# Operations whose payload may differ from rank to rank by design.
_UNEVEN = ("all_to_all", "alltoall", "gather_v", "scatter", "barrier", "coalesced")
_FROZEN = ("stopped", "zombie", "gone")  # states in which a process cannot move


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One operation in flight: a collective's `seq` in its group, or a send or recv with `peer` >= 0."""

    group: Key
    seq: int
    op: str
    size: str = ""  # payload and type, compared as text; "": unknown
    peer: int = -1
    age_ns: int = 0

    @property
    def signature(self) -> tuple[str, str]:
        """What every member must agree on at one sequence number."""
        uneven = any(word in self.op for word in _UNEVEN)
        return (self.op, "" if uneven else self.size)


@dataclass(frozen=True, kw_only=True)
class Witness:
    """What is known of one rank. `silence_ns` is the time since it last did anything."""

    rank: int
    state: str = "running"
    heard: bool = True
    computing: bool = False  # inside a phase that is no communication
    silence_ns: int = 0
    enqueued: Mapping[Key, int] = field(default_factory=dict)
    completed: Mapping[Key, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupBlame:
    """One process group in which somebody waits: at which operation, and who is missing from it."""

    group: str
    members: tuple[int, ...]
    seq: int
    op: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    mismatched: tuple[int, ...] = ()
    sink: bool = False


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The verdict. `culprits` are ranks; `group` is the stuck group of a network or desync verdict."""

    verdict: HangVerdict
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    confidence: float
    reason: str
    groups: tuple[GroupBlame, ...] = ()
    group: Key | None = None


@dataclass(frozen=True, kw_only=True)
class _Knot:
    """One sink of the wait-for graph and what it was judged to be."""

    verdict: HangVerdict
    culprits: tuple[int, ...]
    confidence: float
    reason: str
    group: Key | None = None


def blame(witnesses: Iterable[Witness], *, stalled: bool = True, margin_ns: int = 1_000_000_000) -> Blame:
    """The ranks at fault, their victims, and how sure that is.

    Where the job as a whole has not `stalled`, only ranks whose process cannot move are blamed.
    `margin_ns` is by how much the first rank to fall silent must precede the next to be blamed on that ground
    alone. Ranks that only appear as members count as silent. No rank waiting gives verdict "none".

    >>> g = ("tp", (0, 1))
    >>> stuck = Witness(rank=0, enqueued={g: 8}, waits=(Wait(group=g, seq=8, op="all_reduce"),))
    >>> late = Witness(rank=1, enqueued={g: 7}, computing=True)
    >>> blame([stuck, late]).culprits
    (1,)
    """
    known = _complete({w.rank: w for w in witnesses})
    groups = _group_table(known)
    frozen = {r for r, w in known.items() if w.state in _FROZEN}
    edges = _edges(known, groups)
    waiting = {r for r, w in known.items() if w.waits}
    if not waiting and not frozen:
        return Blame(verdict="none", culprits=(), victims=(), confidence=0.9, reason="no rank waits")
    if known.keys() <= frozen:
        return Blame(
            verdict="uncertain",
            culprits=(),
            victims=(),
            confidence=0.3,
            reason="every rank is stopped or gone",
        )
    knots = [_frozen_knot(r, known[r], edges) for r in sorted(frozen)]
    explained = _reaching(edges, frozen) | frozen
    if stalled:
        rest = {r: edges[r] - explained for r in edges if r not in explained}
        knots += [
            k for knot in _sinks(rest) if (k := _judge(knot, known, groups, edges, margin_ns)) is not None
        ]
    return _combine(knots, known, groups, edges)


def _complete(known: Mapping[int, Witness]) -> dict[int, Witness]:
    """`known` with an unheard witness for every rank that others name but nobody heard."""
    named = {m for w in known.values() for key in w.enqueued for m in key[1]}
    named |= {m for w in known.values() for wait in w.waits for m in (*wait.group[1], wait.peer) if m >= 0}
    return {**{r: Witness(rank=r, state="unknown", heard=False) for r in named - known.keys()}, **known}


def _group_table(known: Mapping[int, Witness]) -> dict[Key, GroupBlame]:
    """Every group in which a collective is in flight, judged at the newest one that somebody waits in."""
    waits: dict[Key, list[tuple[int, Wait]]] = {}
    for rank, witness in known.items():
        for wait in witness.waits:
            if wait.peer < 0:
                waits.setdefault(wait.group, []).append((rank, wait))
    return {key: _group_blame(key, held, known) for key, held in sorted(waits.items())}


def _group_blame(key: Key, held: Sequence[tuple[int, Wait]], known: Mapping[int, Witness]) -> GroupBlame:
    """Who is missing from the newest operation of a group, and who is in another one at the same seq."""
    seq = max(wait.seq for _, wait in held)
    missing = tuple(m for m in key[1] if known[m].enqueued.get(key, 0) < seq)
    votes = {rank: wait.signature for rank, wait in held if wait.seq == seq}
    return GroupBlame(
        group=key[0],
        members=key[1],
        seq=seq,
        op=next(wait.op for _, wait in held if wait.seq == seq),
        waiting=tuple(sorted(rank for rank, _ in held)),
        missing=missing,
        mismatched=_minority(votes),
    )


def _minority(votes: Mapping[int, tuple[str, str]]) -> tuple[int, ...]:
    """Ranks that disagree with the majority; all of them where there is none; empty where all agree."""
    counted = Counter(votes.values()).most_common(2)
    if len(counted) < 2:
        return ()
    if counted[0][1] == counted[1][1]:
        return tuple(sorted(votes))
    return tuple(sorted(r for r, vote in votes.items() if vote != counted[0][0]))


def _edges(known: Mapping[int, Witness], groups: Mapping[Key, GroupBlame]) -> dict[int, set[int]]:
    """rank -> ranks it waits for."""
    edges: dict[int, set[int]] = {r: set() for r in known}
    for rank, witness in known.items():
        for wait in witness.waits:
            edges[rank] |= _waits_for(rank, wait, known)
    return edges


def _waits_for(rank: int, wait: Wait, known: Mapping[int, Witness]) -> set[int]:
    if wait.peer >= 0:
        return {wait.peer} - {rank}
    others = [m for m in wait.group[1] if m != rank]
    behind = {m for m in others if known[m].enqueued.get(wait.group, 0) < wait.seq}
    if behind:
        return behind
    return {m for m in others if known[m].completed.get(wait.group, 0) < wait.seq}


def _reaching(edges: Mapping[int, Set[int]], targets: Set[int]) -> set[int]:
    """Ranks that wait, directly or through others, for one of `targets`."""
    back: dict[int, set[int]] = {}
    for rank, outs in edges.items():
        for out in outs:
            back.setdefault(out, set()).add(rank)
    found: set[int] = set()
    todo = list(targets)
    while todo:
        for rank in back.get(todo.pop(), ()):
            if rank not in found:
                found.add(rank)
                todo.append(rank)
    return found


def _sinks(edges: Mapping[int, Set[int]]) -> list[tuple[int, ...]]:
    """Strongly connected components without a way out, that somebody waits in or for."""
    reach = {r: _forward(edges, r) for r in edges}
    knots = {
        tuple(sorted({r} | {o for o in outs if r in reach[o]}))
        for r, outs in reach.items()
        if all(r in reach[o] for o in outs)
    }
    pointed = {o for outs in edges.values() for o in outs}
    return sorted(k for k in knots if len(k) > 1 or k[0] in pointed)


def _forward(edges: Mapping[int, Set[int]], start: int) -> set[int]:
    """Everything `start` waits for, directly or through others."""
    found: set[int] = set()
    todo = [start]
    while todo:
        for out in edges.get(todo.pop(), ()):
            if out not in found:
                found.add(out)
                todo.append(out)
    return found


def _frozen_knot(rank: int, witness: Witness, edges: Mapping[int, Set[int]]) -> _Knot:
    victims = _reaching(edges, {rank}) - {rank}
    return _Knot(
        verdict="rank",
        culprits=(rank,),
        confidence=0.99 if victims else 0.9,
        reason=f"rank {rank} is {witness.state}; {len(victims)} others wait for it",
    )


def _judge(
    knot: tuple[int, ...],
    known: Mapping[int, Witness],
    groups: Mapping[Key, GroupBlame],
    edges: Mapping[int, Set[int]],
    margin_ns: int,
) -> _Knot | None:
    """What one sink is: a rank at fault, a mismatch, or a transfer that does not move."""
    if len(knot) == 1:
        return _lone(known[knot[0]], edges)
    mismatch = _mismatch(knot, groups)
    if mismatch is not None:
        return mismatch
    return _singled_out(knot, known, margin_ns) or _stuck_together(knot, known, groups)


def _lone(witness: Witness, edges: Mapping[int, Set[int]]) -> _Knot:
    """A rank that waits for nobody while others wait for it."""
    count = len(_reaching(edges, {witness.rank}) - {witness.rank})
    if not witness.heard:
        what, confidence = "left no trace", 0.9
    elif witness.waits:
        what, confidence = f"is alone in {witness.waits[0].op}, which its peers have finished", 0.75
    else:
        what, confidence = "never joined", 0.95 if witness.computing or witness.state == "disk" else 0.9
    reason = f"rank {witness.rank} {what}; {count} others wait for it"
    return _Knot(verdict="rank", culprits=(witness.rank,), confidence=confidence, reason=reason)


def _mismatch(knot: tuple[int, ...], groups: Mapping[Key, GroupBlame]) -> _Knot | None:
    """A desync where the members of one group are in different operations at the same sequence number."""
    for key, group in groups.items():
        odd = tuple(r for r in group.mismatched if r in knot)
        if not odd or not set(knot) & set(group.waiting):
            continue
        tie = len(group.mismatched) == len(group.waiting)
        return _Knot(
            verdict="desync",
            culprits=odd,
            confidence=0.5 if tie else 0.9,
            reason=f"ranks {_listed(odd)} disagree with {group.op} at seq {group.seq} of {group.group}",
            group=key,
        )
    return None


def _singled_out(knot: tuple[int, ...], known: Mapping[int, Witness], margin_ns: int) -> _Knot | None:
    """The one member that the processes' own state or silence tells from the rest, if any."""
    disk = [r for r in knot if known[r].state == "disk"]
    if len(disk) == 1:
        return _Knot(
            verdict="rank",
            culprits=(disk[0],),
            confidence=0.85,
            reason=f"rank {disk[0]} is blocked in the kernel",
        )
    computing = [r for r in knot if known[r].computing]
    if len(computing) == 1:
        return _Knot(
            verdict="rank",
            culprits=(computing[0],),
            confidence=0.85,
            reason=f"rank {computing[0]} is outside communication while its peers wait",
        )
    oldest, second = sorted(knot, key=lambda r: -known[r].silence_ns)[:2]
    lead_ns = known[oldest].silence_ns - known[second].silence_ns
    if lead_ns < margin_ns:
        return None
    return _Knot(
        verdict="rank",
        culprits=(oldest,),
        confidence=0.7,
        reason=f"rank {oldest} fell silent {lead_ns / 1e9:.1f} s before the next",
    )


def _stuck_together(
    knot: tuple[int, ...], known: Mapping[int, Witness], groups: Mapping[Key, GroupBlame]
) -> _Knot:
    """All joined: the same operation (network), or operations that wait crosswise (desync)."""
    waits = [(r, w) for r in knot for w in known[r].waits]
    shared = [
        k for k, g in groups.items() if not g.missing and set(knot) <= set(g.waiting) and not g.mismatched
    ]
    if shared:
        group = groups[shared[0]]
        reason = f"every member joined {group.op} seq {group.seq} of {group.group} and none finished"
        return _Knot(verdict="network", culprits=(), confidence=0.8, reason=reason, group=shared[0])
    if len(knot) == 2 and _paired(waits):
        reason = f"the transfer between ranks {knot[0]} and {knot[1]} was joined by both and does not move"
        return _Knot(verdict="network", culprits=(), confidence=0.75, reason=reason, group=waits[0][1].group)
    return _Knot(
        verdict="desync",
        culprits=knot,
        confidence=0.5,
        reason=f"ranks {_listed(knot)} wait for each other in different operations",
        group=waits[0][1].group if waits else None,
    )


def _paired(waits: Sequence[tuple[int, Wait]]) -> bool:
    """Whether a send and the recv that answers it are both in flight."""
    sends = {(r, w.peer) for r, w in waits if w.peer >= 0 and "send" in w.op}
    recvs = {(w.peer, r) for r, w in waits if w.peer >= 0 and "recv" in w.op}
    return bool(sends & recvs)


def _combine(
    knots: Sequence[_Knot],
    known: Mapping[int, Witness],
    groups: Mapping[Key, GroupBlame],
    edges: Mapping[int, Set[int]],
) -> Blame:
    """One verdict of all sinks: ranks at fault outrank a desync, which outranks the network."""
    if not knots:
        return Blame(
            verdict="uncertain",
            culprits=(),
            victims=(),
            confidence=0.2,
            reason="ranks wait, but for nobody that was heard of",
            groups=tuple(groups.values()),
        )
    order: tuple[HangVerdict, ...] = ("rank", "desync", "network")
    verdict = min((k.verdict for k in knots), key=order.index)
    chosen = [k for k in knots if k.verdict == verdict]
    culprits = tuple(sorted({r for k in chosen for r in k.culprits}))
    victims = tuple(sorted(_reaching(edges, set(culprits) or set(known)) - set(culprits)))
    return Blame(
        verdict=verdict,
        culprits=culprits,
        victims=victims,
        confidence=min(k.confidence for k in chosen),
        reason="; ".join(k.reason for k in chosen),
        groups=tuple(_marked(g, culprits) for g in groups.values()),
        group=chosen[0].group,
    )


def _marked(group: GroupBlame, culprits: tuple[int, ...]) -> GroupBlame:
    """`group` with `sink` set where nobody but culprits is missing from it."""
    sink = set(group.missing) <= set(culprits)
    return GroupBlame(**{**group.__dict__, "sink": sink})


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(str(r) for r in ranks)
