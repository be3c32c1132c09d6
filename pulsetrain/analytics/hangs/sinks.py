"""What an end of the wait-for graph is: a rank at fault, a mismatch, or a transfer that does not move.

An end is one rank that waits for nobody while others wait for it, or a knot of ranks that wait for each
other. A knot is a mismatch (desync), or a transfer that does not move (network), unless evidence about the
processes themselves (stopped, gone, silent) singles some out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from pulsetrain.analytics.hangs.evidence import Key, RankEvidence, Wait
from pulsetrain.analytics.hangs.wait_graph import Graph

HangVerdict = Literal["rank", "network", "desync", "none", "uncertain"]


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
class Sink:
    """One sink of the wait-for graph and what it was judged to be."""

    verdict: HangVerdict
    culprits: tuple[int, ...]
    confidence: float
    reason: str
    group: Key | None = None
    left_behind: int = 0  # how many wait for a rank that did not finish what its peers did


def frozen_knot(witness: RankEvidence, graph: Graph) -> Sink:
    """A rank whose process is stopped or gone."""
    victims = graph.reaching({witness.rank})
    return Sink(
        verdict="rank",
        culprits=(witness.rank,),
        confidence=0.99 if victims else 0.9,
        reason=f"rank {witness.rank} is {witness.state}; {_waiting(len(victims))} for it",
    )


def judge(
    knot: tuple[int, ...],
    known: Mapping[int, RankEvidence],
    groups: Mapping[Key, GroupBlame],
    graph: Graph,
    margin_ns: int,
) -> Sink:
    """What one sink is: a rank at fault, a mismatch, or a transfer that does not move."""
    if len(knot) == 1:
        return _lone(known[knot[0]], graph)
    return (
        _mismatch(knot, groups)
        or _unstarted(knot, known)
        or _by_process(knot, known)
        or _late_host(knot, known)
        or _first_silent(knot, known, margin_ns)
        or _stuck_together(knot, known, groups)
    )


def _lone(witness: RankEvidence, graph: Graph) -> Sink:
    """A rank that waits for nobody while others wait for it."""
    count = len(graph.reaching({witness.rank}))
    if not witness.heard:
        what, confidence = "left no trace", 0.85
    elif witness.first is not None:
        alone = len(witness.first.group[1]) < 2
        what, confidence = f"does not finish {witness.first.op}{'' if alone else ', as its peers did'}", 0.9
    else:
        what, confidence = "never joined", 0.95
    return Sink(
        verdict="rank",
        culprits=(witness.rank,),
        confidence=confidence,
        reason=f"rank {witness.rank} {what}; {_waiting(count)} for it",
        left_behind=count if witness.heard and witness.first is not None else 0,
    )


def _mismatch(knot: tuple[int, ...], groups: Mapping[Key, GroupBlame]) -> Sink | None:
    """A desync where the members of one group are in different operations at the same sequence number."""
    for key, group in groups.items():
        odd = tuple(r for r in group.mismatched if r in knot)
        if odd:
            tie = len(odd) * 2 >= len(group.waiting)
            reason = (
                f"{_named(odd)} not in the rest's {group.op}, or not with their payload, "
                f"at seq {group.seq} of {group.group}"
            )
            return Sink(
                verdict="desync", culprits=odd, confidence=0.5 if tie else 0.9, reason=reason, group=key
            )
    return None


def _unstarted(knot: tuple[int, ...], known: Mapping[int, RankEvidence]) -> Sink | None:
    """Members whose device never began the operation that the others' devices are in."""
    firsts = {r: w for r in knot if (w := known[r].first) is not None}
    idle = tuple(r for r, w in firsts.items() if w.started is False)
    if not idle or not any(w.started for w in firsts.values()):
        return None
    reason = f"{_named(idle)} to be in {firsts[idle[0]].op}, but never began it on the device"
    return Sink(verdict="rank", culprits=idle, confidence=0.85, reason=reason)


def _by_process(knot: tuple[int, ...], known: Mapping[int, RankEvidence]) -> Sink | None:
    """The one member whose process is blocked in the kernel, or is outside communication."""
    disk = [r for r in knot if known[r].state == "disk"]
    if len(disk) == 1:
        reason = f"rank {disk[0]} is blocked in the kernel"
        return Sink(verdict="rank", culprits=(disk[0],), confidence=0.85, reason=reason)
    computing = [r for r in knot if known[r].computing]
    if len(computing) == 1:
        reason = f"rank {computing[0]} is outside communication while its peers wait"
        return Sink(verdict="rank", culprits=(computing[0],), confidence=0.85, reason=reason)
    return None


def _late_host(knot: tuple[int, ...], known: Mapping[int, RankEvidence]) -> Sink | None:
    """A minority that enqueued less than the others in a group they share, though all joined the oldest."""
    by_group: dict[Key, dict[int, int]] = {}
    for rank in knot:
        for key, count in known[rank].enqueued.items():
            by_group.setdefault(key, {})[rank] = count
    late: set[int] = set()
    for counts in by_group.values():
        most = max(counts.values())
        late |= {r for r, count in counts.items() if count < most}
    if not late or len(late) * 2 >= len(knot):
        return None
    reason = f"{_named(sorted(late))} behind: stopped enqueueing before the others"
    return Sink(verdict="rank", culprits=tuple(sorted(late)), confidence=0.6, reason=reason)


def lagging(known: Mapping[int, RankEvidence], culprits: Set[int]) -> list[Sink]:
    """Ranks whose hosts stopped too, hidden behind a culprit that their devices wait for.

    A host runs ahead of its device until it must wait for it, so hosts of ranks whose devices wait at the
    same place of one program come equally far. Of three or more, one that enqueued the least stopped.
    """
    places: dict[tuple[str, str, int], list[int]] = {}
    for rank in sorted(known.keys() - culprits) if culprits else ():
        first = known[rank].first
        if first is not None:
            places.setdefault((first.group[0], first.op, first.seq), []).append(rank)
    late = {r for ranks in places.values() if len(ranks) > 2 for r in _enqueued_least(ranks, known)}
    what = "stopped enqueueing where its peers went on"
    return [
        Sink(verdict="rank", culprits=(r,), confidence=0.6, reason=f"rank {r} {what}") for r in sorted(late)
    ]


def _enqueued_least(ranks: Sequence[int], known: Mapping[int, RankEvidence]) -> set[int]:
    """Those that enqueued less than every peer in some group of theirs, and in none more than one of them."""
    counts: dict[Key, list[int]] = {}
    for rank in ranks:
        for key, count in known[rank].enqueued.items():
            counts.setdefault(key, []).append(count)
    least = {key: sorted(found)[:2] for key, found in counts.items() if len(found) > 2}

    def lags(rank: int) -> bool:
        told = [(known[rank].enqueued[key], low) for key, low in least.items() if key in known[rank].enqueued]
        ahead = any(own > low[0] for own, low in told)
        return not ahead and any(own < low[1] for own, low in told)

    return {rank for rank in ranks if lags(rank)}


def _first_silent(knot: tuple[int, ...], known: Mapping[int, RankEvidence], margin_ns: int) -> Sink | None:
    oldest, second = sorted(knot, key=lambda r: (-known[r].silence_ns, r))[:2]
    lead_ns = known[oldest].silence_ns - known[second].silence_ns
    if lead_ns < margin_ns:
        return None
    reason = f"rank {oldest} fell silent {lead_ns / 1e9:.1f} s before the next"
    return Sink(verdict="rank", culprits=(oldest,), confidence=0.7, reason=reason)


def _stuck_together(
    knot: tuple[int, ...], known: Mapping[int, RankEvidence], groups: Mapping[Key, GroupBlame]
) -> Sink:
    """All joined: the same operation (network), or operations that wait crosswise (desync)."""
    firsts = [(r, w) for r in knot if (w := known[r].first) is not None]
    ops = {w.same for _, w in firsts}
    if len(ops) == 1 and firsts[0][1].peer < 0 and not groups[firsts[0][1].group].missing:
        wait = firsts[0][1]
        reason = f"every member joined {wait.op} seq {wait.seq} of {wait.group[0]} and none finished"
        return Sink(verdict="network", culprits=(), confidence=0.8, reason=reason, group=wait.group)
    if len(knot) == 2 and _paired([(r, w) for r in knot for w in known[r].waits]):
        reason = f"the transfer between ranks {knot[0]} and {knot[1]} was joined by both and does not move"
        return Sink(verdict="network", culprits=(), confidence=0.75, reason=reason, group=firsts[0][1].group)
    group = firsts[0][1].group if firsts else None
    if odd := _out_of_order(firsts):
        reason = f"{_named(odd)} in another operation than the rest of the same ranks"
        return Sink(verdict="desync", culprits=odd, confidence=0.7, reason=reason, group=group)
    reason = f"{_named(knot)} waiting for each other in different operations"
    return Sink(verdict="desync", culprits=knot, confidence=0.5, reason=reason, group=group)


def _out_of_order(firsts: Sequence[tuple[int, Wait]]) -> tuple[int, ...]:
    """The minority among ranks whose operations all have the same members; empty where there is none."""
    if any(w.peer >= 0 for _, w in firsts) or len({w.group[1] for _, w in firsts}) != 1:
        return ()
    usual, count = Counter(w.same for _, w in firsts).most_common(1)[0]
    return tuple(r for r, w in firsts if w.same != usual) if 2 * count > len(firsts) else ()


def _paired(waits: Sequence[tuple[int, Wait]]) -> bool:
    """Whether a send and the recv that answers it are both in flight."""
    sends = {(r, w.peer) for r, w in waits if w.peer >= 0 and "send" in w.op}
    recvs = {(w.peer, r) for r, w in waits if w.peer >= 0 and "recv" in w.op}
    return bool(sends & recvs)


def _named(ranks: Sequence[int]) -> str:
    """The ranks as the subject of a sentence, with its verb."""
    listed = ", ".join(str(r) for r in ranks)
    return f"rank {listed} is" if len(ranks) == 1 else f"ranks {listed} are"


def _waiting(count: int) -> str:
    """How many wait, as a clause."""
    return "nobody waits" if not count else "1 other waits" if count == 1 else f"{count} others wait"
