"""What a sink of the wait-for graph is: a rank at fault, a desync, or a network that does not move data.

A sink is one rank that waits for nobody while others wait for it, or several ranks that wait for each other.
Several ranks are a mismatch (desync) or a transfer that does not move (network), unless evidence about the
processes themselves singles some out: stopped, gone, or silent earlier than the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, TypedDict

from pulsetrain.analytics.hangs.evidence import GroupKey, RankEvidence, Wait, meets
from pulsetrain.analytics.hangs.wait_graph import WaitGraph

HangVerdict = Literal["rank", "network", "desync", "none", "uncertain"]
EvidenceByRank = Mapping[int, RankEvidence]
Sink = tuple[int, ...]  # ranks of one sink, sorted


class StuckGroupAnswer(TypedDict):
    """A `StuckGroup` in the answer of `pulsetrain hang` and in the evidence of a finding."""

    group: str
    members: tuple[int, ...]
    seq: int
    op: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    mismatched: tuple[int, ...]
    sink: bool


@dataclass(frozen=True, kw_only=True)
class StuckGroup:
    """A process group in which somebody waits.

    `seq` and `op` are the collective that most members wait in. `missing` never joined it. `mismatched` are
    in another operation at the same sequence number. `sink`: all that are missing are at fault.
    """

    group: str
    members: tuple[int, ...]
    seq: int
    op: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    mismatched: tuple[int, ...] = ()
    sink: bool = False

    def answer(self) -> StuckGroupAnswer:
        """Return the group as a JSON object."""
        return {
            "group": self.group,
            "members": self.members,
            "seq": self.seq,
            "op": self.op,
            "waiting": self.waiting,
            "missing": self.missing,
            "mismatched": self.mismatched,
            "sink": self.sink,
        }


@dataclass(frozen=True, kw_only=True)
class SinkVerdict:
    """What one sink was judged to be.

    `left_behind` counts the ranks that wait for a rank which did not finish what its peers finished, and
    `unfinished` is that operation. `proven`: the operations can never meet, so the hang cannot end by itself.
    """

    verdict: HangVerdict
    culprits: tuple[int, ...]
    confidence: float
    reason: str
    group: GroupKey | None = None
    left_behind: int = 0
    unfinished: Wait | None = None
    proven: bool = False

    def is_stranded_by(self, other: SinkVerdict) -> bool:
        """Return whether the mismatch of another rank is why this one did not finish.

        A rank that brings another payload to a group takes the turn of one of its peers, which then waits in
        vain. It waits in the same group for another payload, and leaves fewer behind than the rank itself.
        """
        mine, theirs = self.unfinished, other.unfinished
        if mine is None or theirs is None or mine.group != theirs.group:
            return False
        return mine.signature != theirs.signature and 0 < 2 * self.left_behind < other.left_behind


def judge_frozen(evidence: RankEvidence, graph: WaitGraph) -> SinkVerdict:
    """Return the verdict on a rank whose process is stopped, or gone while others wait: it is at fault."""
    victims = graph.reaching({evidence.rank})
    return SinkVerdict(
        verdict="rank",
        culprits=(evidence.rank,),
        confidence=0.99 if victims else 0.9,
        reason=f"rank {evidence.rank} is {evidence.state}; {_waiting(len(victims))} for it",
    )


def judge_sink(
    sink: Sink,
    ranks: EvidenceByRank,
    groups: Mapping[GroupKey, StuckGroup],
    graph: WaitGraph,
    margin_ns: int,
) -> SinkVerdict:
    """Return what one sink is. The checks are tried in order of how much they prove.

    A rank that fell silent at least `margin_ns` before the next is at fault where nothing better is known.
    """
    if len(sink) == 1:
        return _single_rank(ranks[sink[0]], graph)
    return (
        _mismatch(sink, ranks, groups)
        or _not_started(sink, ranks)
        or _by_process(sink, ranks)
        or _late_host(sink, ranks)
        or _first_silent(sink, ranks, margin_ns)
        or _stuck_together(sink, ranks, groups, graph)
    )


def _single_rank(evidence: RankEvidence, graph: WaitGraph) -> SinkVerdict:
    """Judge a rank that waits for nobody while others wait for it."""
    count = len(graph.reaching({evidence.rank}))
    oldest = evidence.oldest_wait
    if not evidence.reported:
        what, confidence = "left no trace", 0.85
    elif oldest is not None and oldest.may_have_ended and len(oldest.group[1]) > 1:
        where = f"{oldest.op} seq {oldest.seq} of {oldest.group[0]}"
        reason = f"every member joined {where}, and who finished is not known"
        return SinkVerdict(verdict="network", culprits=(), confidence=0.5, reason=reason, group=oldest.group)
    elif oldest is not None:
        alone = len(oldest.group[1]) < 2
        what, confidence = f"does not finish {oldest.op}{'' if alone else ', as its peers did'}", 0.9
    else:
        what, confidence = "never joined", 0.95
    return SinkVerdict(
        verdict="rank",
        culprits=(evidence.rank,),
        confidence=confidence,
        reason=f"rank {evidence.rank} {what}; {_waiting(count)} for it",
        left_behind=count if evidence.reported and oldest is not None else 0,
        unfinished=oldest if evidence.reported else None,
    )


def _mismatch(sink: Sink, ranks: EvidenceByRank, groups: Mapping[GroupKey, StuckGroup]) -> SinkVerdict | None:
    """Return a desync where members of one group are in different operations at the same sequence number.

    It is no proof where an operation may have ended on its device. One group of torch may have a backend for
    the host and one for devices, and what a thread enqueues to one has no fixed place among the other's.
    Nor is it one where the main thread of a rank waits in another group.
    """
    for key, group in groups.items():
        odd = tuple(r for r in group.mismatched if r in sink)
        if odd:
            tie = len(odd) * 2 >= len(group.waiting)
            at_odds = [(r, w) for r in sink for w in ranks[r].waits if w.collective == (key, group.seq)]
            proven = not any(w.may_have_ended or ranks[r].stands_outside(key) for r, w in at_odds)
            reason = (
                f"{_subject(odd)} not in the rest's {group.op}, or not with their payload, "
                f"at seq {group.seq} of {group.group}"
            )
            return SinkVerdict(
                verdict="desync",
                culprits=odd,
                confidence=0.5 if tie or not proven else 0.9,
                reason=reason,
                group=key,
                proven=proven,
            )
    return None


def _not_started(sink: Sink, ranks: EvidenceByRank) -> SinkVerdict | None:
    """Blame the members whose device never began the operation that the devices of the others are in."""
    oldest = {r: w for r in sink if (w := ranks[r].oldest_wait) is not None}
    idle = tuple(r for r, w in oldest.items() if w.started is False)
    if not idle or not any(w.started for w in oldest.values()):
        return None
    reason = f"{_subject(idle)} to be in {oldest[idle[0]].op}, but never began it on the device"
    return SinkVerdict(verdict="rank", culprits=idle, confidence=0.85, reason=reason)


def _by_process(sink: Sink, ranks: EvidenceByRank) -> SinkVerdict | None:
    """Blame the one member whose process is blocked in the kernel, or is outside communication."""
    blocked = [r for r in sink if ranks[r].state == "disk"]
    if len(blocked) == 1:
        reason = f"rank {blocked[0]} is blocked in the kernel"
        return SinkVerdict(verdict="rank", culprits=(blocked[0],), confidence=0.85, reason=reason)
    computing = [r for r in sink if ranks[r].computing]
    if len(computing) == 1:
        reason = f"rank {computing[0]} is outside communication while its peers wait"
        return SinkVerdict(verdict="rank", culprits=(computing[0],), confidence=0.85, reason=reason)
    return None


def _late_host(sink: Sink, ranks: EvidenceByRank) -> SinkVerdict | None:
    """Blame a minority that enqueued less than the others in a group that they share."""
    by_group: dict[GroupKey, dict[int, int]] = {}
    for rank in sink:
        for key, count in ranks[rank].enqueued.items():
            by_group.setdefault(key, {})[rank] = count
    late: set[int] = set()
    for counts in by_group.values():
        most = max(counts.values())
        late |= {r for r, count in counts.items() if count < most}
    if not late or len(late) * 2 >= len(sink):
        return None
    reason = f"{_subject(sorted(late))} behind: stopped enqueueing before the others"
    return SinkVerdict(verdict="rank", culprits=tuple(sorted(late)), confidence=0.6, reason=reason)


def judge_lagging(ranks: EvidenceByRank, culprits: Set[int]) -> list[SinkVerdict]:
    """Return the ranks whose hosts stopped too, hidden behind a culprit that their devices wait for.

    A host runs ahead of its device until it must wait for it. So the hosts of ranks whose devices wait at the
    same point of one program have enqueued equally much. Of three or more such hosts, one that enqueued the
    least has stopped.
    """
    positions: dict[tuple[str, str, int], list[int]] = {}
    for rank in sorted(ranks.keys() - culprits) if culprits else ():
        oldest = ranks[rank].oldest_wait
        if oldest is not None:
            positions.setdefault((oldest.group[0], oldest.op, oldest.seq), []).append(rank)
    late = {r for peers in positions.values() if len(peers) > 2 for r in _enqueued_least(peers, ranks)}
    what = "stopped enqueueing where its peers went on"
    return [
        SinkVerdict(verdict="rank", culprits=(r,), confidence=0.6, reason=f"rank {r} {what}")
        for r in sorted(late)
    ]


def _enqueued_least(peers: Sequence[int], ranks: EvidenceByRank) -> set[int]:
    """Return those that enqueued the least in one of their groups, and are ahead in none of them."""
    counts: dict[GroupKey, list[int]] = {}
    for rank in peers:
        for key, count in ranks[rank].enqueued.items():
            counts.setdefault(key, []).append(count)
    lowest_two = {key: sorted(values)[:2] for key, values in counts.items() if len(values) > 2}

    def lags(rank: int) -> bool:
        own = ranks[rank].enqueued
        shared = [(count, lowest_two[key]) for key, count in own.items() if key in lowest_two]
        ahead = any(count > lowest[0] for count, lowest in shared)
        return not ahead and any(count < lowest[1] for count, lowest in shared)

    return {rank for rank in peers if lags(rank)}


def _first_silent(sink: Sink, ranks: EvidenceByRank, margin_ns: int) -> SinkVerdict | None:
    oldest, second = sorted(sink, key=lambda r: (-ranks[r].silence_ns, r))[:2]
    lead_ns = ranks[oldest].silence_ns - ranks[second].silence_ns
    if lead_ns < margin_ns:
        return None
    reason = f"rank {oldest} fell silent {lead_ns / 1e9:.1f} s before the next"
    return SinkVerdict(verdict="rank", culprits=(oldest,), confidence=0.7, reason=reason)


def _stuck_together(
    sink: Sink, ranks: EvidenceByRank, groups: Mapping[GroupKey, StuckGroup], graph: WaitGraph
) -> SinkVerdict:
    """Judge ranks that all joined: the same operation (network), or different ones (desync)."""
    oldest = [(r, w) for r in sink if (w := ranks[r].oldest_wait) is not None]
    collectives = {w.collective for _, w in oldest}
    if len(collectives) == 1 and not oldest[0][1].is_transfer and not groups[oldest[0][1].group].missing:
        wait = oldest[0][1]
        reason = f"every member joined {wait.op} seq {wait.seq} of {wait.group[0]} and none finished"
        return SinkVerdict(verdict="network", culprits=(), confidence=0.8, reason=reason, group=wait.group)
    if len(sink) == 2 and _paired([(r, w) for r in sink for w in ranks[r].waits]):
        reason = f"the transfer between ranks {sink[0]} and {sink[1]} was joined by both and does not move"
        group = oldest[0][1].group
        return SinkVerdict(verdict="network", culprits=(), confidence=0.75, reason=reason, group=group)
    odd, confidence = _out_of_order(oldest), 0.7
    if odd:
        reason = f"{_subject(odd)} in another operation than the rest of the same ranks"
    elif len(hubs := graph.hubs(sink)) == 1:
        odd, others = hubs, [rank for rank in sink if rank not in hubs]
        reason = f"{_subject(odd)} in an operation that {_listed(others)} are not in, and they wait for it"
    else:
        odd = hubs or sink
        confidence = 1 / len(odd)
        reason = f"{_subject(sink)} waiting for each other in different operations"
        if len(odd) < len(sink):
            reason += f". One of {_listed(odd)} is at fault: without it nobody would"
    return SinkVerdict(
        verdict="desync",
        culprits=odd,
        confidence=confidence,
        reason=reason,
        group=oldest[0][1].group if oldest else None,
        # An operation in flight may be one of another thread, for which no main thread waits.
        proven=all(ranks[r].stands_in_oldest for r in sink),
    )


def _out_of_order(oldest: Sequence[tuple[int, Wait]]) -> tuple[int, ...]:
    """Return the minority among ranks whose operations have equal members, empty where there is none."""
    if any(w.is_transfer for _, w in oldest) or len({w.group[1] for _, w in oldest}) != 1:
        return ()
    usual, count = Counter(w.collective for _, w in oldest).most_common(1)[0]
    return tuple(r for r, w in oldest if w.collective != usual) if 2 * count > len(oldest) else ()


def _paired(waits: Sequence[tuple[int, Wait]]) -> bool:
    """Whether a send and its matching recv are both in flight."""
    transfers = [(r, w) for r, w in waits if w.is_transfer]
    return any(meets(w, r, other, rank) for r, w in transfers for rank, other in transfers)


def _subject(ranks: Sequence[int]) -> str:
    """Return the ranks as the subject of a sentence, with its verb."""
    return f"{_listed(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _listed(ranks: Sequence[int]) -> str:
    """Return the ranks as a noun."""
    listed = ", ".join(str(r) for r in ranks)
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _waiting(count: int) -> str:
    """Return how many wait, as a clause."""
    return "nobody waits" if not count else "1 other waits" if count == 1 else f"{count} others wait"
