"""Who is to blame when nobody moves: a wait-for graph over process groups and point-to-point edges.

A rank waits for the members of a collective that have not enqueued it, or for the peer of a send or recv.
Blame flows along the edges; what the graph ends in is judged in `knots`. Everything is linear in ranks and
operations in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from pulsetrain.analytics.hangs.evidence import Key, RankEvidence, Wait
from pulsetrain.analytics.hangs.sinks import GroupBlame, HangVerdict, Sink, frozen_knot, judge, lagging
from pulsetrain.analytics.hangs.wait_graph import Graph, Node

_FROZEN = ("stopped", "zombie", "gone")  # states in which a process cannot move


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

    def answer(self, notes: Sequence[str]) -> dict[str, Any]:
        """As `pulsetrain hang` gives it: verdict, culprits, confidence, groups, victims, reason, notes."""
        return {
            "verdict": self.verdict,
            "culprits": list(self.culprits),
            "confidence": round(self.confidence, 3),
            "groups": [group.__dict__ for group in self.groups],
            "victims": list(self.victims),
            "reason": self.reason,
            "notes": list(notes),
        }


def blame(
    witnesses: Iterable[RankEvidence], *, stalled: bool = True, margin_ns: int = 1_000_000_000
) -> Blame:
    """The ranks at fault, their victims, and how sure that is.

    Where the job as a whole has not `stalled`, only ranks whose process cannot move are blamed.
    `margin_ns` is by how much the first rank to fall silent must precede the next to be blamed on that ground
    alone. Ranks that only appear as members count as silent. No rank waiting gives verdict "none".

    >>> g = ("tp", (0, 1))
    >>> stuck = RankEvidence(rank=0, enqueued={g: 8}, waits=(Wait(group=g, seq=8, op="all_reduce"),))
    >>> late = RankEvidence(rank=1, enqueued={g: 7}, computing=True)
    >>> blame([stuck, late]).culprits
    (1,)
    """
    known = _complete({w.rank: w for w in witnesses})
    frozen = {r for r, w in known.items() if w.state in _FROZEN}
    if not frozen and not any(w.waits for w in known.values()):
        return Blame(verdict="none", culprits=(), victims=(), confidence=0.9, reason="no rank waits")
    if known.keys() <= frozen:
        reason = "every rank is stopped or gone"
        return Blame(verdict="uncertain", culprits=(), victims=(), confidence=0.3, reason=reason)
    groups = _group_table(known)
    graph = _graph(known, groups)
    knots = [frozen_knot(known[r], graph) for r in sorted(frozen)]
    if stalled:
        sinks = [s for s in graph.sinks() if not set(s) & frozen]
        knots += [judge(sink, known, groups, graph, margin_ns) for sink in sinks]
        knots += lagging(known, {r for k in knots for r in k.culprits})
    return _combine(knots, groups, graph)


def _complete(known: Mapping[int, RankEvidence]) -> dict[int, RankEvidence]:
    """`known` with an unheard witness for every rank that others name but nobody heard. It joined and
    finished every collective that some member finished, for none ends without it."""
    keys = {key for w in known.values() for key in w.enqueued} | {
        x.group for w in known.values() for x in w.waits
    }
    named = {m for key in keys for m in key[1]}
    named |= {x.peer for w in known.values() for x in w.waits if x.peer >= 0}
    unheard = {r for r in named - known.keys()} | {r for r, w in known.items() if not w.heard}
    done: dict[int, dict[Key, int]] = {r: {} for r in sorted(unheard)}
    for key in keys if unheard else ():
        ended = max((known[m].completed.get(key, 0) for m in key[1] if m in known), default=0)
        for member in unheard.intersection(key[1]):
            done[member][key] = ended
    return dict(known) | {
        r: replace(
            known.get(r) or RankEvidence(rank=r, state="unknown", heard=False), enqueued=d, completed=d
        )
        for r, d in done.items()
    }


def _group_table(known: Mapping[int, RankEvidence]) -> dict[Key, GroupBlame]:
    """Every group in which a collective is in flight, judged at the one that most members wait in."""
    waits: dict[Key, dict[int, Wait]] = {}
    for rank in sorted(known):
        for wait in known[rank].waits:
            if wait.peer < 0:
                waits.setdefault(wait.group, {})[rank] = wait
    return {key: _group_blame(key, held, known) for key, held in sorted(waits.items())}


def _group_blame(key: Key, held: Mapping[int, Wait], known: Mapping[int, RankEvidence]) -> GroupBlame:
    """Who is missing from the operation that most members wait in, and who is in another at the same seq."""
    seq = Counter(wait.seq for wait in held.values()).most_common(1)[0][0]
    here = {rank: wait for rank, wait in held.items() if wait.seq == seq}
    return GroupBlame(
        group=key[0],
        members=key[1],
        seq=seq,
        op=Counter(wait.op for wait in here.values()).most_common(1)[0][0],
        waiting=tuple(held),
        missing=tuple(m for m in key[1] if known[m].enqueued.get(key, 0) < seq),
        mismatched=_minority({rank: wait.signature for rank, wait in here.items()}),
    )


def _minority(votes: Mapping[int, tuple[str, str]]) -> tuple[int, ...]:
    """Ranks that disagree with the majority; all of them where there is none; empty where all agree."""
    counted = Counter(votes.values()).most_common(2)
    if len(counted) < 2:
        return ()
    if counted[0][1] == counted[1][1]:
        return tuple(sorted(votes))
    return tuple(sorted(r for r, vote in votes.items() if vote != counted[0][0]))


# -- the graph ---------------------------------------------------------------------------------------


def _graph(known: Mapping[int, RankEvidence], groups: Mapping[Key, GroupBlame]) -> Graph:
    """rank -> operation -> ranks that hold it up. A rank whose process cannot move waits for nobody."""
    edges: dict[Node, Set[Node]] = {r: set() for r in known}
    for rank, witness in known.items():
        if witness.state in _FROZEN:
            continue
        outs: set[Node] = set()
        for wait in witness.waits:
            outs |= (
                _transfer(rank, wait, known) if wait.peer >= 0 else _collective(wait, witness, known, edges)
            )
        edges[rank] = outs
    _presume(known, edges)
    return Graph(edges)


def _presume(known: Mapping[int, RankEvidence], edges: dict[Node, Set[Node]]) -> None:
    """Let a rank that was not heard wait where its heard peers wait for a heard rank, in `edges`.

    Not where a peer came to wait for it alone before that operation: it cannot be beyond what it never
    joined.
    """
    unheard = {r for r, w in known.items() if not w.heard and w.state not in _FROZEN}
    if not unheard:
        return
    _narrow(unheard, edges)
    before: dict[int, set[int]] = {}
    for rank, witness in known.items():
        for rank_needed in _needed_first(witness, edges) & unheard:
            before.setdefault(rank_needed, set()).add(rank)
    for node, outs in list(edges.items()):
        if isinstance(node, int) or not node[-1] or not outs or outs & unheard:
            continue
        members = node[0][1]
        for rank in unheard.intersection(members):
            if not before.get(rank, set()).intersection(members):
                edges[rank] = {*edges[rank], node}


def _narrow(unheard: Set[int], edges: dict[Node, Set[Node]]) -> None:
    """Where several ranks that were not heard hold an operation up, and some of them hold another up alone,
    those are reason enough."""
    held = {n: outs for n, outs in edges.items() if not isinstance(n, int) and n[-1] and outs <= unheard}
    alone = {rank for outs in held.values() if len(outs) == 1 for rank in outs}
    for node, outs in held.items():
        if outs & alone:
            edges[node] = outs & alone


def _needed_first(witness: RankEvidence, edges: Mapping[Node, Set[Node]]) -> set[int]:
    """The ranks that hold up the operation which comes first in the rank's program."""
    first = witness.first
    if first is None:
        return set()
    needed = {first.peer} if first.peer >= 0 else edges.get((*first.same, True), set())
    return {r for r in needed if isinstance(r, int)}


def _transfer(rank: int, wait: Wait, known: Mapping[int, RankEvidence]) -> set[Node]:
    """The peer of a send or recv, unless it finished, or joined while this rank waits for something older; a
    peer that was not heard only where this rank waits for nothing older."""
    peer = known[wait.peer]
    if not peer.heard and known[rank].first is not wait:
        return set()
    twin = next((w for w in peer.waits if w.peer == rank and ("send" in w.op) != ("send" in wait.op)), None)
    if twin is None and peer.transferred.get(wait.group, -1) >= wait.seq >= 0:
        return set()
    if twin is not None and known[rank].first is not wait:
        return set()
    return {wait.peer}


def _collective(
    wait: Wait, witness: RankEvidence, known: Mapping[int, RankEvidence], edges: dict[Node, Set[Node]]
) -> set[Node]:
    """The node of one collective, with its edges entered in `edges`; nothing where it holds nobody up.

    Members that never joined hold it up. Where all that were heard joined, it is those that have something
    older to wait for, or else those that were not heard, or else all that have not finished. Where a member
    has finished, the others wait for the data of one whose process cannot move (a ring passes it from rank to
    rank), or else have only themselves to blame.
    """
    first = witness.first is wait
    node: Node = (*wait.same, first)
    if node not in edges:
        edges[node] = _holding(wait, known, first=first)
    return {node} if edges[node] else set()


def _holding(wait: Wait, known: Mapping[int, RankEvidence], *, first: bool) -> set[Node]:
    members = wait.group[1]
    behind = {m for m in members if known[m].enqueued.get(wait.group, 0) < wait.seq}
    told = {m for m in behind if known[m].heard}
    if told or not first:
        return set(told)
    older = {m for m in members if (w := known[m].first) is not None and w.same != wait.same}
    if behind:
        return set(older or behind)
    unfinished = {m for m in members if known[m].completed.get(wait.group, 0) < wait.seq}
    if len(unfinished) < len(members):
        return {m for m in unfinished if known[m].state in _FROZEN}
    return set(older or members)


def _combine(knots: Sequence[Sink], groups: Mapping[Key, GroupBlame], graph: Graph) -> Blame:
    """One verdict of all sinks: ranks at fault outrank a desync, which outranks the network."""
    if not knots:
        return Blame(
            verdict="uncertain",
            culprits=(),
            victims=(),
            confidence=0.2,
            reason="ranks wait, but for nobody that can be named",
            groups=tuple(groups.values()),
        )
    most = max(k.left_behind for k in knots)
    knots = [k for k in knots if not 0 < 2 * k.left_behind < most]  # one rank's mismatch strands others too
    order: tuple[HangVerdict, ...] = ("rank", "desync", "network")
    verdict = min((k.verdict for k in knots), key=order.index)
    chosen = [k for k in knots if k.verdict == verdict]
    culprits = tuple(sorted({r for k in chosen for r in k.culprits}))
    stuck = {m for k in chosen if k.group for m in k.group[1]}
    return Blame(
        verdict=verdict,
        culprits=culprits,
        victims=tuple(sorted((graph.reaching(set(culprits) or stuck) | stuck) - set(culprits))),
        confidence=min(k.confidence for k in chosen),
        reason="; ".join(k.reason for k in chosen[:8]),
        groups=tuple(
            replace(g, sink=bool(g.missing) and set(g.missing) <= set(culprits)) for g in groups.values()
        ),
        group=chosen[0].group,
    )
