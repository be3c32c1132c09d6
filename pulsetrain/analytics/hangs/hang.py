"""Who is at fault when no rank moves: a wait-for graph over process groups and point-to-point transfers.

A rank waits for the members of a collective that have not enqueued it, or for the peer of a send or recv.
Following these edges leads to the sinks of the graph, and `sinks` judges each of them. The time is linear in
ranks and operations in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypedDict

from pulsetrain.analytics.hangs.condition import FROZEN
from pulsetrain.analytics.hangs.evidence import GroupKey, RankEvidence, Wait, meets
from pulsetrain.analytics.hangs.sinks import (
    EvidenceByRank,
    HangVerdict,
    SinkVerdict,
    StuckGroup,
    StuckGroupAnswer,
    judge_frozen,
    judge_lagging,
    judge_sink,
)
from pulsetrain.analytics.hangs.wait_graph import CollectiveNode, Edges, Node, WaitGraph

_MAX_REASONS = 8
_DOUBT = 0.75  # of the confidence is left where a rank that did not finish is held for stranded by another
_VERDICT_ORDER: tuple[HangVerdict, ...] = ("rank", "desync", "network")


class HangAnswer(TypedDict):
    """What `pulsetrain hang` prints as JSON."""

    verdict: HangVerdict
    culprits: list[int]
    confidence: float
    groups: list[StuckGroupAnswer]
    victims: list[int]
    reason: str
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class HangDiagnosis:
    """Who is at fault and who only waits. `group` is the stuck group of a network or desync verdict.

    `proven`: the operations of the ranks at fault can never meet those of their peers.
    """

    verdict: HangVerdict
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    confidence: float
    reason: str
    groups: tuple[StuckGroup, ...] = ()
    group: GroupKey | None = None
    proven: bool = False

    def answer(self, notes: Sequence[str]) -> HangAnswer:
        """Return the diagnosis as `pulsetrain hang` prints it. `notes` name the files that were not used."""
        return {
            "verdict": self.verdict,
            "culprits": list(self.culprits),
            "confidence": round(self.confidence, 3),
            "groups": [group.answer() for group in self.groups],
            "victims": list(self.victims),
            "reason": self.reason,
            "notes": list(notes),
        }


def diagnose(
    evidence: Iterable[RankEvidence], *, stalled: bool = True, margin_ns: int = 1_000_000_000
) -> HangDiagnosis:
    """Return the ranks at fault, their victims, and how sure that is.

    A rank that is gone is blamed only where another one waits for it: it may have ended as it should.
    `stalled`: the job as a whole does not move. Where it does move, only ranks whose process cannot move are
    blamed. A rank is blamed only for falling silent first where it did so `margin_ns` before the next. Ranks
    that others name, but of which there is no evidence, count as silent. Where no rank waits, the verdict is
    "none".

    >>> group = ("tp", (0, 1))
    >>> stuck = RankEvidence(rank=0, enqueued={group: 8}, waits=(Wait(group=group, seq=8, op="all_reduce"),))
    >>> late = RankEvidence(rank=1, enqueued={group: 7}, computing=True)
    >>> diagnose([stuck, late]).culprits
    (1,)
    """
    ranks = _with_unreported({e.rank: e for e in evidence})
    frozen = {r for r, e in ranks.items() if e.state in FROZEN}
    if not frozen and not any(e.waits for e in ranks.values()):
        return HangDiagnosis(verdict="none", culprits=(), victims=(), confidence=0.9, reason="no rank waits")
    if ranks.keys() <= frozen:
        reason = "every rank is stopped or gone"
        return HangDiagnosis(verdict="uncertain", culprits=(), victims=(), confidence=0.3, reason=reason)
    groups = _stuck_groups(ranks)
    graph = _wait_graph(ranks)
    blamed = [r for r in sorted(frozen) if ranks[r].state != "gone" or graph.reaching({r})]
    if not blamed and not any(e.waits for e in ranks.values()):
        reason = "no rank waits, and those that are gone hold nobody up"
        return HangDiagnosis(verdict="none", culprits=(), victims=(), confidence=0.9, reason=reason)
    verdicts = [judge_frozen(ranks[r], graph) for r in blamed]
    if stalled:
        sinks = [s for s in graph.sinks() if not set(s) & frozen]
        verdicts += [judge_sink(sink, ranks, groups, graph, margin_ns) for sink in sinks]
        verdicts += judge_lagging(ranks, {r for v in verdicts for r in v.culprits})
    return _combine(verdicts, groups, graph)


def _with_unreported(ranks: EvidenceByRank) -> dict[int, RankEvidence]:
    """Add evidence for the ranks that others name but that did not report.

    Such a rank finished every collective that some member finished, because none ends without all members.
    """
    keys = {key for e in ranks.values() for key in e.enqueued}
    keys |= {wait.group for e in ranks.values() for wait in e.waits}
    named = {member for key in keys for member in key[1]}
    named |= {wait.peer for e in ranks.values() for wait in e.waits if wait.peer >= 0}
    unreported = (named - ranks.keys()) | {r for r, e in ranks.items() if not e.reported}
    finished: dict[int, dict[GroupKey, int]] = {r: {} for r in sorted(unreported)}
    for key in keys if unreported else ():
        newest = max((ranks[m].completed.get(key, 0) for m in key[1] if m in ranks), default=0)
        for member in unreported.intersection(key[1]):
            finished[member][key] = newest
    return dict(ranks) | {
        r: replace(
            ranks.get(r) or RankEvidence(rank=r, state="unknown", reported=False), enqueued=seq, completed=seq
        )
        for r, seq in finished.items()
    }


def _stuck_groups(ranks: EvidenceByRank) -> dict[GroupKey, StuckGroup]:
    """Return every group in which a collective is in flight."""
    waits: dict[GroupKey, dict[int, Wait]] = {}
    for rank in sorted(ranks):
        for wait in ranks[rank].waits:
            if not wait.is_transfer:
                waits.setdefault(wait.group, {})[rank] = wait
    return {key: _stuck_group(key, by_rank, ranks) for key, by_rank in sorted(waits.items())}


def _stuck_group(key: GroupKey, waits: Mapping[int, Wait], ranks: EvidenceByRank) -> StuckGroup:
    """Describe a group by the collective that most members wait in."""
    seq = Counter(wait.seq for wait in waits.values()).most_common(1)[0][0]
    same_seq = {rank: wait for rank, wait in waits.items() if wait.seq == seq}
    return StuckGroup(
        group=key[0],
        members=key[1],
        seq=seq,
        op=Counter(wait.op for wait in same_seq.values()).most_common(1)[0][0],
        waiting=tuple(waits),
        missing=tuple(m for m in key[1] if ranks[m].enqueued.get(key, 0) < seq),
        mismatched=_minority({rank: wait.signature for rank, wait in same_seq.items()}),
    )


def _minority(signatures: Mapping[int, tuple[str, str]]) -> tuple[int, ...]:
    """Return the ranks that disagree with the majority: all on a tie, none where all agree."""
    counted = Counter(signatures.values()).most_common(2)
    if len(counted) < 2:
        return ()
    if counted[0][1] == counted[1][1]:
        return tuple(sorted(signatures))
    return tuple(sorted(r for r, signature in signatures.items() if signature != counted[0][0]))


# -- the graph ---------------------------------------------------------------------------------------


def _wait_graph(ranks: EvidenceByRank) -> WaitGraph:
    """Build the graph: rank -> collective -> ranks that hold it up, and rank -> peer of a transfer.

    A rank whose process cannot move waits for nobody.
    """
    edges: Edges = {r: set() for r in ranks}
    for rank, evidence in ranks.items():
        if evidence.state in FROZEN:
            continue
        targets: set[Node] = set()
        for wait in evidence.waits:
            if wait.is_transfer:
                targets |= _transfer_targets(evidence, wait, ranks)
            else:
                targets |= _collective_targets(evidence, wait, ranks, edges)
        edges[rank] = targets
    _add_presumed_edges(ranks, edges)
    return WaitGraph(edges)


def _add_presumed_edges(ranks: EvidenceByRank, edges: Edges) -> None:
    """Let a rank without a report wait in the collectives in which its peers wait for a rank with a report.

    Not where a peer came to wait for the unreported rank before that collective: the unreported rank cannot
    have passed an operation that it never joined.
    """
    unreported = {r for r, e in ranks.items() if not e.reported and e.state not in FROZEN}
    if not unreported:
        return
    _narrow_to_proven(unreported, edges)
    needed_by: dict[int, set[int]] = {}
    for rank, evidence in ranks.items():
        for needed in _needed_first(evidence, edges) & unreported:
            needed_by.setdefault(needed, set()).add(rank)
    for node, targets in list(edges.items()):
        if isinstance(node, int) or not node.oldest or not targets or targets & unreported:
            continue
        members = node.collective.group[1]
        for rank in unreported.intersection(members):
            if not needed_by.get(rank, set()).intersection(members):
                edges[rank] = {*edges[rank], node}


def _narrow_to_proven(unreported: Set[int], edges: Edges) -> None:
    """Keep the fewest unreported ranks that explain why collectives do not end.

    Several of them may hold one collective up. Where some of these hold up another collective alone, they are
    reason enough for the first one too.
    """
    held = {
        node: targets
        for node, targets in edges.items()
        if not isinstance(node, int) and node.oldest and targets <= unreported
    }
    alone = {rank for targets in held.values() if len(targets) == 1 for rank in targets}
    for node, targets in held.items():
        if targets & alone:
            edges[node] = targets & alone


def _needed_first(evidence: RankEvidence, edges: Mapping[Node, Set[Node]]) -> set[int]:
    """Return the ranks that hold up the oldest operation of a rank."""
    oldest = evidence.oldest_wait
    if oldest is None:
        return set()
    if oldest.is_transfer:
        return set(oldest.sides(evidence.rank))
    needed = edges.get(CollectiveNode(oldest.collective, oldest=True), set())
    return {r for r in needed if isinstance(r, int)}


def _transfer_targets(evidence: RankEvidence, wait: Wait, ranks: EvidenceByRank) -> set[Node]:
    """Return the peer of a send or recv, or nothing where the peer does not hold it up.

    It does not where it finished the transfer. It does not either where it joined while this rank waits for
    something older. A peer without a report counts only where this rank waits for nothing older. A recv from
    any source is held up by whoever sends to it now, else by all other members.
    """
    sides = {peer for peer in wait.sides(evidence.rank) if peer in ranks}
    joined = {peer for peer in sides if any(meets(w, peer, wait, evidence.rank) for w in ranks[peer].waits)}
    if evidence.oldest_wait is wait:
        return set(joined or {p for p in sides if not _transferred(ranks[p], wait)})
    if joined:
        return set()
    return {p for p in sides if ranks[p].reported and not _transferred(ranks[p], wait)}


def _transferred(peer: RankEvidence, wait: Wait) -> bool:
    return peer.transferred.get(wait.group, -1) >= wait.seq >= 0


def _collective_targets(evidence: RankEvidence, wait: Wait, ranks: EvidenceByRank, edges: Edges) -> set[Node]:
    """Return the node of a collective, nothing where no rank holds it up. Add its edges to `edges`."""
    is_oldest = evidence.oldest_wait is wait
    node = CollectiveNode(wait.collective, is_oldest)
    if node not in edges:
        edges[node] = _holding_up(wait, ranks, is_oldest=is_oldest)
    return {node} if edges[node] else set()


def _holding_up(wait: Wait, ranks: EvidenceByRank, *, is_oldest: bool) -> set[Node]:
    """Return the members that hold a collective up.

    1. Members that reported and never joined it.
    2. Where all that reported joined: members that wait for something older, else those without a report.
    3. Where all joined and some finished: unfinished members whose process cannot move. A ring passes data
       from rank to rank, so the others wait for theirs.
    4. Where all joined and none finished: members that wait for something older, else all members.
    """
    group = wait.group
    members = group[1]
    behind = {m for m in members if ranks[m].enqueued.get(group, 0) < wait.seq}
    reported = {m for m in behind if ranks[m].reported}
    if reported or not is_oldest:
        return set(reported)
    collective = wait.collective
    older = {m for m in members if (w := ranks[m].oldest_wait) is not None and w.collective != collective}
    if behind:
        return set(older or behind)
    unfinished = {m for m in members if ranks[m].completed.get(group, 0) < wait.seq}
    if len(unfinished) < len(members):
        return {m for m in unfinished if ranks[m].state in FROZEN}
    return set(older or members)


def _combine(
    verdicts: Sequence[SinkVerdict], groups: Mapping[GroupKey, StuckGroup], graph: WaitGraph
) -> HangDiagnosis:
    """Return one diagnosis of all sinks. Ranks at fault outrank a desync, and that outranks the network."""
    if not verdicts:
        return HangDiagnosis(
            verdict="uncertain",
            culprits=(),
            victims=(),
            confidence=0.2,
            reason="ranks wait, but for nobody that can be named",
            groups=tuple(groups.values()),
        )
    unfinished = [v for v in verdicts if v.unfinished is not None]
    stranded = [v for v in unfinished if any(v.is_stranded_by(other) for other in unfinished)]
    if stranded:
        verdicts = [v for v in verdicts if v not in stranded]
    verdict = min((v.verdict for v in verdicts), key=_VERDICT_ORDER.index)
    chosen = [v for v in verdicts if v.verdict == verdict]
    culprits = tuple(sorted({r for v in chosen for r in v.culprits}))
    stuck = {member for v in chosen if v.group for member in v.group[1]}
    return HangDiagnosis(
        verdict=verdict,
        culprits=culprits,
        victims=tuple(sorted((graph.reaching(set(culprits) or stuck) | stuck) - set(culprits))),
        confidence=min(v.confidence for v in chosen) * (_DOUBT if stranded else 1.0),
        reason="; ".join([*(v.reason for v in chosen[:_MAX_REASONS]), *_doubts(stranded)]),
        groups=tuple(
            replace(g, sink=bool(g.missing) and set(g.missing) <= set(culprits)) for g in groups.values()
        ),
        group=chosen[0].group,
        proven=all(v.proven for v in chosen),
    )


def _doubts(stranded: Sequence[SinkVerdict]) -> list[str]:
    ranks = ", ".join(str(r) for v in stranded for r in v.culprits)
    return [f"not blamed, because its payload never found its peers: {ranks}"] if stranded else []
