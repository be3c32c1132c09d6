"""Stacks of all ranks as one picture: a tree folded by rank ranges, and whose stack differs from the rest.

Ranks that wait for one culprit stand in the same place, and the culprit elsewhere (ByteRobust: stacks are
matched as text, dominant groups are healthy, outliers share the smallest parallel group). Stacks are compared
by function and file: the line within one loop says nothing. Where no place holds more than half of the ranks,
ranks with equal roles are compared instead; where that fails too the answer is "no consensus". Any one sample
of a job that runs has somebody elsewhere: called is who stands elsewhere in each of several samples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pulsetrain.analytics.selection import ranges

MAIN = "MainThread"
LEAST_SHARE = 0.5  # a place that more ranks than this share of them stand in is where ranks are expected
LEAST_FIT = 0.5  # F1 of outliers and a parallel group from which the group is named
SHOWN_FRAMES = 3
MOST_CLUSTERS = 16
LEAST_SAMPLES = 2  # fewer accuse nobody

WorldNode = tuple[str, ...]
State = Literal["outlier", "alike", "no_consensus", "blind"]


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """Where one thread of some ranks stands; `frames` as "function (file:line)", outermost first."""

    thread: str
    frames: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What the stacks say. `outliers` stand elsewhere than most; `group` is the parallel group they share.
    `samples` are those that could be read, `wavering` who stood elsewhere in some of them but not in all."""

    state: State
    sentence: str
    clusters: tuple[RankStack, ...] = ()
    outliers: tuple[int, ...] = ()
    group: tuple[str, tuple[int, ...]] | None = None
    blind: tuple[tuple[str, tuple[int, ...]], ...] = ()
    samples: int = 1
    wavering: tuple[int, ...] = ()

    def brief(self) -> dict[str, Any]:
        """For the evidence of a verdict: sentence, outliers, the largest places, what could not be read."""
        return {
            "state": self.state,
            "sentence": self.sentence,
            "outliers": ranges(self.outliers),
            "group": {"group": self.group[0], "members": ranges(self.group[1])} if self.group else None,
            "clusters": [{"ranks": ranges(c.ranks), "where": where(c.frames)} for c in self.clusters],
            "blind": [{"reason": reason, "ranks": ranges(ranks)} for reason, ranks in self.blind],
            "samples": self.samples,
            "wavering": ranges(self.wavering),
        }


def vote(pictures: Sequence[Picture], groups: Iterable[tuple[str, tuple[int, ...]]] = ()) -> Picture:
    """The newest of some samples' pictures, in order of time, with those as outliers who are so in every
    sample that could be read; nobody where fewer than `LEAST_SAMPLES` could be.

    >>> usual = RankStack(thread=MAIN, frames=("all_reduce (c10d.py:1)",), ranks=(0, 1, 2))
    >>> odd = RankStack(thread=MAIN, frames=("load (b.py:2)",), ranks=(3,))
    >>> vote([judge([usual, odd])]).outliers, vote([judge([usual, odd])] * 3).outliers
    ((), (3,))
    """
    read = [p for p in pictures if p.state != "blind"]
    if not read:
        return pictures[-1]
    called = set.intersection(*(set(p.outliers) for p in read)) if len(read) >= LEAST_SAMPLES else set()
    seen = {r for p in read for r in p.outliers}
    picture = replace(read[-1], samples=len(read), wavering=tuple(sorted(seen - called)))
    if not seen:
        return picture
    if not called:
        return replace(
            picture,
            state="no_consensus",
            sentence=f"{_unsure(len(read), picture.wavering)} {_places(picture.clusters)}.",
            outliers=(),
            group=None,
        )
    outliers = tuple(sorted(called))
    group = _shared_group(outliers, [g for g in sorted(set(groups)) if len(g[1]) > 1])
    sentence = f"{_sentence(outliers, picture.clusters, group)} So in {len(read)} samples in a row."
    return replace(picture, state="outlier", sentence=sentence, outliers=outliers, group=group)


def _unsure(samples: int, wavering: Sequence[int]) -> str:
    if samples < LEAST_SAMPLES:
        return f"Stacks differ in one sample, which accuses nobody (ranks {ranges(wavering)}):"
    who = f"ranks {ranges(wavering)} in some"
    return f"No consensus: nobody stands elsewhere in all of {samples} samples ({who}):"


def _places(clusters: Sequence[RankStack]) -> str:
    return "; ".join(f"ranks {ranges(c.ranks)} in {where(c.frames)}" for c in clusters[:3])


def judge(
    stacks: Iterable[RankStack],
    groups: Iterable[tuple[str, tuple[int, ...]]] = (),
    blind: Mapping[int, str] | None = None,
) -> Picture:
    """Whose main thread stands elsewhere than most, in one sample. `groups` are (name, members) of parallel
    groups; `blind` says why a rank could not be read.

    >>> most = RankStack(thread=MAIN, frames=("step (a.py:9)", "all_reduce (c10d.py:1)"), ranks=(0, 1, 3))
    >>> odd = RankStack(thread=MAIN, frames=("step (a.py:7)", "load (b.py:2)"), ranks=(2,))
    >>> judge([most, odd]).outliers
    (2,)
    """
    reasons = _reasons(blind or {})
    main = sorted((s for s in stacks if s.thread == MAIN), key=lambda s: (s.ranks, s.frames))
    place = {rank: key(s.frames) for s in main for rank in s.ranks}
    if not place:
        why = "; ".join(f"{reason} (ranks {ranges(r)})" for reason, r in reasons) or "no rank was asked"
        return Picture(state="blind", sentence=f"No stack could be read: {why}.", blind=reasons)
    clusters = _clusters(main, place)
    if len(clusters) == 1:
        sentence = f"All {len(place)} ranks stand in {where(clusters[0].frames)}."
        return Picture(state="alike", sentence=sentence, clusters=clusters, blind=reasons)
    known = [g for g in sorted(set(groups)) if len(g[1]) > 1]
    outliers = _outliers(place) or _outliers_by_role(place, known)
    if not outliers:
        sentence = f"No consensus: {len(place)} ranks stand in {len(clusters)} places: {_places(clusters)}."
        return Picture(
            state="no_consensus", sentence=sentence, clusters=clusters[:MOST_CLUSTERS], blind=reasons
        )
    group = _shared_group(outliers, known)
    return Picture(
        state="outlier",
        sentence=_sentence(outliers, clusters, group),
        clusters=clusters[:MOST_CLUSTERS],
        outliers=outliers,
        group=group,
        blind=reasons,
    )


def key(frames: Sequence[str]) -> WorldNode:
    """A stack as what is compared: functions and files without line numbers.

    >>> key(("step (train.py:12)",))
    ('step (train.py)',)
    """
    return tuple(re.sub(r":-?\d+\)$", ")", frame) for frame in frames)


def where(frames: Sequence[str]) -> str:
    """The innermost frames, from the caller to the callee."""
    return " > ".join(frames[-SHOWN_FRAMES:])


def _reasons(blind: Mapping[int, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    by_reason: dict[str, list[int]] = {}
    for rank in sorted(blind):
        by_reason.setdefault(blind[rank], []).append(rank)
    return tuple((reason, tuple(ranks)) for reason, ranks in by_reason.items())


def _clusters(main: Sequence[RankStack], place: Mapping[int, WorldNode]) -> tuple[RankStack, ...]:
    """Ranks by place, the fullest first; the frames are those of the place's first rank, with its lines."""
    example = {rank: s.frames for s in main for rank in s.ranks}
    ranks: dict[WorldNode, list[int]] = {}
    for rank in sorted(place):
        ranks.setdefault(place[rank], []).append(rank)
    made = [RankStack(thread=MAIN, frames=example[r[0]], ranks=tuple(r)) for r in ranks.values()]
    return tuple(sorted(made, key=lambda c: (-len(c.ranks), c.ranks)))


def _outliers(place: Mapping[int, WorldNode]) -> tuple[int, ...]:
    """Ranks outside the one place that more than half of all stand in; none where there is no such place."""
    usual, count = Counter(place.values()).most_common(1)[0]
    if count <= LEAST_SHARE * len(place):
        return ()
    return tuple(sorted(r for r, p in place.items() if p != usual))


def _outliers_by_role(
    place: Mapping[int, WorldNode], groups: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[int, ...]:
    """The same within the groups of one kind (say all data-parallel ones), of the kind whose members agree
    most: pipeline stages stand in different places, but the replicas of one stage in the same."""
    families: dict[str, list[dict[int, WorldNode]]] = {}
    for name, members in groups:
        held = {r: place[r] for r in members if r in place}
        if 2 < len(held) < len(place):
            families.setdefault(re.sub(r"\d+", "N", name), []).append(held)
    scored = []
    for family, parts in sorted(families.items()):
        agreeing = sum(Counter(p.values()).most_common(1)[0][1] for p in parts)
        scored.append((agreeing / sum(len(p) for p in parts), family))
    if not scored or max(scored)[0] <= LEAST_SHARE:
        return ()
    return tuple(sorted({r for part in families[max(scored)[1]] for r in _outliers(part)}))


def _shared_group(
    outliers: Sequence[int], groups: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[str, tuple[int, ...]] | None:
    """The parallel group that fits several outliers best (F1 of precision and coverage), if one fits."""
    if len(outliers) < 2:
        return None
    odd = set(outliers)
    scored = [(2 * len(odd & set(m)) / (len(odd) + len(m)), -len(m), (name, m)) for name, m in groups]
    best = max(scored, default=(0.0, 0, None), key=lambda s: (s[0], s[1]))
    return best[2] if best[0] >= LEAST_FIT else None


def _sentence(
    outliers: Sequence[int], clusters: Sequence[RankStack], group: tuple[str, tuple[int, ...]] | None
) -> str:
    odd = [c for c in clusters if set(c.ranks) & set(outliers)]
    usual = next((c for c in clusters if not set(c.ranks) & set(outliers)), None)
    places = "; ".join(
        f"{'rank' if len(c.ranks) == 1 else 'ranks'} {ranges(c.ranks)} in {where(c.frames)}" for c in odd[:4]
    )
    shared = f" They share the group {group[0]} (ranks {ranges(group[1])})." if group else ""
    rest = f", the others in {where(usual.frames)}" if usual else ""
    return f"Stacks differ: {places}{rest}.{shared}"


# -- the tree ---------------------------------------------------------------------------------------------


def tree(stacks: Iterable[RankStack], *, threads: bool = False) -> list[dict[str, Any]]:
    """Stacks merged from the outermost frame on: {"frame", "ranks": "0-3,6", "children"}, the fullest first.

    One root a thread name, the main thread first; others only with `threads`.
    """
    by_thread: dict[str, list[RankStack]] = {}
    for stack in stacks:
        if threads or stack.thread == MAIN:
            by_thread.setdefault(stack.thread, []).append(stack)
    names = sorted(by_thread, key=lambda name: (name != MAIN, name))
    return [_branch(name, by_thread[name], 0) for name in names]


def _branch(name: str, stacks: Sequence[RankStack], depth: int) -> dict[str, Any]:
    below: dict[str, list[RankStack]] = {}
    for stack in stacks:
        if depth < len(stack.frames):
            below.setdefault(stack.frames[depth], []).append(stack)
    order = sorted(below, key=lambda f: (-len({r for s in below[f] for r in s.ranks}), f))
    return {
        "frame": name,
        "ranks": ranges(r for s in stacks for r in s.ranks),
        "children": [_branch(frame, below[frame], depth + 1) for frame in order],
    }


def lines(branches: Iterable[Mapping[str, Any]]) -> list[str]:
    """The tree as text: ranks, then the frame, indented only where ranks part.

    >>> lines(tree([RankStack(thread=MAIN, frames=("a (x:1)", "b (x:2)"), ranks=(0, 1))]))
    ['0-1: MainThread', '0-1: a (x:1)', '0-1: b (x:2)']
    """
    found: list[str] = []
    for branch in branches:
        _write(branch, "", found)
    return found


def _write(branch: Mapping[str, Any], indent: str, found: list[str]) -> None:
    found.append(f"{indent}{branch['ranks']}: {branch['frame']}")
    parts = len(branch["children"]) > 1
    for child in branch["children"]:
        _write(child, indent + "  " * parts, found)
