"""Compare the stacks of all ranks: whose main thread stands elsewhere than most, and a tree of all stacks.

Ranks that wait for one rank stand in the same function. The rank they wait for stands in another.
ByteRobust (arXiv 2509.16293) compares stacks as text in the same way. There, large clusters are healthy, and
outliers share the smallest parallel group.

- Stacks are compared by function and file. The line within a loop says nothing.
- Where no cluster holds more than half of the ranks, ranks with equal roles are compared instead. Where that
  fails too, the answer is "no consensus".
- A single sample of a healthy job always has somebody elsewhere. A rank is an outlier only where several
  samples in a row agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from pulsetrain.analytics.selection import ranges

MAIN = "MainThread"
MAJORITY_SHARE = 0.5  # ranks are expected where more than this share of them stands
MIN_GROUP_FIT = 0.5  # F1 of outliers and a parallel group from which the group is named
SHOWN_FRAMES = 3
MAX_CLUSTERS = 16
MOST_REASONS = 4  # in a sentence
MIN_SAMPLES = 2  # with fewer samples nobody is called an outlier

FrameKeys = tuple[str, ...]  # a stack without line numbers
Group = tuple[str, tuple[int, ...]]  # name and members of a parallel group
State = Literal["outlier", "alike", "no_consensus", "blind"]


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """A thread's stack and the ranks that have it. A frame is "function (file:line)", outermost first."""

    thread: str
    frames: tuple[str, ...]
    ranks: tuple[int, ...]


class GroupEvidence(TypedDict):
    """A parallel group in the evidence of a verdict."""

    group: str
    members: str


class StackEvidence(TypedDict):
    """A comparison as evidence of a verdict. Ranks are text such as "0-3,6"."""

    state: State
    sentence: str
    outliers: str
    group: GroupEvidence | None
    clusters: list[dict[str, str]]
    blind: list[dict[str, str]]
    samples: int
    wavering: str


@dataclass(frozen=True, kw_only=True)
class StackComparison:
    """What the stacks of all ranks say together.

    `outliers` stand elsewhere than most, and `group` is the parallel group that they share. `blind` are the
    ranks that could not be read, by reason. `samples` counts the samples that could be read. `wavering` are
    ranks that stood elsewhere in some samples only.
    """

    state: State
    sentence: str
    clusters: tuple[RankStack, ...] = ()
    outliers: tuple[int, ...] = ()
    group: Group | None = None
    blind: tuple[tuple[str, tuple[int, ...]], ...] = ()
    samples: int = 1
    wavering: tuple[int, ...] = ()

    def brief(self) -> StackEvidence:
        """Return the comparison as evidence of a verdict: the largest clusters, and no whole stack."""
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


def combine(samples: Sequence[StackComparison], groups: Iterable[Group] = ()) -> StackComparison:
    """Combine samples in order of time into one comparison.

    The result is the newest sample that could be read. Its outliers are the ranks that are outliers in every
    sample that could be read. With fewer than `MIN_SAMPLES` such samples there are none.

    >>> usual = RankStack(thread=MAIN, frames=("all_reduce (c10d.py:1)",), ranks=(0, 1, 2))
    >>> odd = RankStack(thread=MAIN, frames=("load (b.py:2)",), ranks=(3,))
    >>> combine([compare([usual, odd])]).outliers, combine([compare([usual, odd])] * 3).outliers
    ((), (3,))
    """
    readable = [s for s in samples if s.state != "blind"]
    if not readable:
        return samples[-1]
    enough = len(readable) >= MIN_SAMPLES
    always = set.intersection(*(set(s.outliers) for s in readable)) if enough else set()
    ever = {r for s in readable for r in s.outliers}
    newest = replace(readable[-1], samples=len(readable), wavering=tuple(sorted(ever - always)))
    if not ever:
        return newest
    if not always:
        return replace(
            newest,
            state="no_consensus",
            sentence=f"{_doubt(len(readable), newest.wavering)} {_cluster_text(newest.clusters)}.",
            outliers=(),
            group=None,
        )
    outliers = tuple(sorted(always))
    group = _shared_group(outliers, [g for g in sorted(set(groups)) if len(g[1]) > 1])
    sentence = f"{_sentence(outliers, newest.clusters, group)} So in {len(readable)} samples in a row."
    return replace(newest, state="outlier", sentence=sentence, outliers=outliers, group=group)


def _doubt(samples: int, wavering: Sequence[int]) -> str:
    if samples < MIN_SAMPLES:
        return f"Stacks differ in one sample, which accuses nobody (ranks {ranges(wavering)}):"
    who = f"ranks {ranges(wavering)} in some"
    return f"No consensus: nobody stands elsewhere in all of {samples} samples ({who}):"


def _cluster_text(clusters: Sequence[RankStack]) -> str:
    return "; ".join(f"ranks {ranges(c.ranks)} in {where(c.frames)}" for c in clusters[:3])


def compare(
    stacks: Iterable[RankStack],
    groups: Iterable[Group] = (),
    blind: Mapping[int, str] | None = None,
) -> StackComparison:
    """Compare the main threads of one sample.

    `groups` are the parallel groups of the job. `blind` maps a rank that could not be read to the reason.

    >>> most = RankStack(thread=MAIN, frames=("step (a.py:9)", "all_reduce (c10d.py:1)"), ranks=(0, 1, 3))
    >>> odd = RankStack(thread=MAIN, frames=("step (a.py:7)", "load (b.py:2)"), ranks=(2,))
    >>> compare([most, odd]).outliers
    (2,)
    """
    reasons = _reasons(blind or {})
    main = sorted((s for s in stacks if s.thread == MAIN), key=lambda s: (s.ranks, s.frames))
    keys = {rank: key(s.frames) for s in main for rank in s.ranks}
    if not keys:
        why = _reasons_text(reasons) or "no rank was read"
        return StackComparison(state="blind", sentence=f"No stack could be read: {why}.", blind=reasons)
    clusters = _clusters(main, keys)
    if len(clusters) == 1:
        sentence = f"All {len(keys)} ranks stand in {where(clusters[0].frames)}."
        return StackComparison(state="alike", sentence=sentence, clusters=clusters, blind=reasons)
    known = [g for g in sorted(set(groups)) if len(g[1]) > 1]
    outliers = _outliers(keys) or _outliers_by_role(keys, known)
    shown = clusters[:MAX_CLUSTERS]
    if not outliers:
        text = f"{len(keys)} ranks stand in {len(clusters)} places: {_cluster_text(clusters)}."
        sentence = f"No consensus: {text}"
        return StackComparison(state="no_consensus", sentence=sentence, clusters=shown, blind=reasons)
    group = _shared_group(outliers, known)
    return StackComparison(
        state="outlier",
        sentence=_sentence(outliers, clusters, group),
        clusters=shown,
        outliers=outliers,
        group=group,
        blind=reasons,
    )


def key(frames: Sequence[str]) -> FrameKeys:
    """Return what is compared of a stack: functions and files without line numbers.

    >>> key(("step (train.py:12)",))
    ('step (train.py)',)
    """
    return tuple(re.sub(r":-?\d+\)$", ")", frame) for frame in frames)


def where(frames: Sequence[str]) -> str:
    """Return the innermost frames as text, from the caller to the callee."""
    return " > ".join(frames[-SHOWN_FRAMES:])


def _reasons_text(reasons: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """The first reasons in words. Of thousands of nodes each may have its own."""
    text = "; ".join(f"{reason} (ranks {ranges(r)})" for reason, r in reasons[:MOST_REASONS])
    more = len(reasons) - MOST_REASONS
    return f"{text}; and {more:,} more reasons" if more > 0 else text


def _reasons(blind: Mapping[int, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    by_reason: dict[str, list[int]] = {}
    for rank in sorted(blind):
        by_reason.setdefault(blind[rank], []).append(rank)
    return tuple((reason, tuple(ranks)) for reason, ranks in by_reason.items())


def _clusters(main: Sequence[RankStack], keys: Mapping[int, FrameKeys]) -> tuple[RankStack, ...]:
    """Group ranks by key, the largest cluster first. Frames, with lines, are those of the first rank."""
    example = {rank: s.frames for s in main for rank in s.ranks}
    ranks: dict[FrameKeys, list[int]] = {}
    for rank in sorted(keys):
        ranks.setdefault(keys[rank], []).append(rank)
    clusters = [RankStack(thread=MAIN, frames=example[r[0]], ranks=tuple(r)) for r in ranks.values()]
    return tuple(sorted(clusters, key=lambda c: (-len(c.ranks), c.ranks)))


def _outliers(keys: Mapping[int, FrameKeys]) -> tuple[int, ...]:
    """Return the ranks outside the majority, empty where there is no majority."""
    usual, count = Counter(keys.values()).most_common(1)[0]
    if count <= MAJORITY_SHARE * len(keys):
        return ()
    return tuple(sorted(rank for rank, own in keys.items() if own != usual))


def _outliers_by_role(keys: Mapping[int, FrameKeys], groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the ranks outside the majority of their group.

    The groups are those of one kind, such as all data-parallel groups, and of the kind whose members agree
    most. Pipeline stages stand in different functions, but the replicas of one stage stand in the same.
    """
    families: dict[str, list[dict[int, FrameKeys]]] = {}
    for name, members in groups:
        known = {r: keys[r] for r in members if r in keys}
        if 2 < len(known) < len(keys):
            families.setdefault(re.sub(r"\d+", "N", name), []).append(known)
    scored = []
    for family, parts in sorted(families.items()):
        agreeing = sum(Counter(p.values()).most_common(1)[0][1] for p in parts)
        scored.append((agreeing / sum(len(p) for p in parts), family))
    if not scored or max(scored)[0] <= MAJORITY_SHARE:
        return ()
    return tuple(sorted({r for part in families[max(scored)[1]] for r in _outliers(part)}))


def _shared_group(outliers: Sequence[int], groups: Sequence[Group]) -> Group | None:
    """Return the parallel group with the best F1 score for the outliers, or None where none fits."""
    if len(outliers) < 2:
        return None
    odd = set(outliers)
    scored = [(2 * len(odd & set(m)) / (len(odd) + len(m)), -len(m), (name, m)) for name, m in groups]
    best = max(scored, default=(0.0, 0, None), key=lambda s: (s[0], s[1]))
    return best[2] if best[0] >= MIN_GROUP_FIT else None


def _sentence(outliers: Sequence[int], clusters: Sequence[RankStack], group: Group | None) -> str:
    odd = [c for c in clusters if set(c.ranks) & set(outliers)]
    usual = next((c for c in clusters if not set(c.ranks) & set(outliers)), None)
    places = "; ".join(
        f"{'rank' if len(c.ranks) == 1 else 'ranks'} {ranges(c.ranks)} in {where(c.frames)}" for c in odd[:4]
    )
    shared = f" They share the group {group[0]} (ranks {ranges(group[1])})." if group else ""
    rest = f", the others in {where(usual.frames)}" if usual else ""
    return f"Stacks differ: {places}{rest}.{shared}"


# -- the tree ---------------------------------------------------------------------------------------------


class StackBranch(TypedDict):
    """One frame of the merged stacks, the ranks that are in it as "0-3,6", and the frames that it called."""

    frame: str
    ranks: str
    children: list[StackBranch]


def tree(stacks: Iterable[RankStack], *, threads: bool = False) -> list[StackBranch]:
    """Merge stacks from the outermost frame on. The branch with most ranks comes first.

    There is one root for each thread name, the main thread first. Other threads appear only with `threads`.
    """
    by_thread: dict[str, list[RankStack]] = {}
    for stack in stacks:
        if threads or stack.thread == MAIN:
            by_thread.setdefault(stack.thread, []).append(stack)
    names = sorted(by_thread, key=lambda name: (name != MAIN, name))
    return [_branch(name, by_thread[name], 0) for name in names]


def _branch(name: str, stacks: Sequence[RankStack], depth: int) -> StackBranch:
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


def lines(branches: Iterable[StackBranch]) -> list[str]:
    """Return the tree as text: ranks, then the frame. Lines are indented only where ranks part.

    >>> lines(tree([RankStack(thread=MAIN, frames=("a (x:1)", "b (x:2)"), ranks=(0, 1))]))
    ['0-1: MainThread', '0-1: a (x:1)', '0-1: b (x:2)']
    """
    text: list[str] = []
    for branch in branches:
        _write(branch, "", text)
    return text


def _write(branch: StackBranch, indent: str, text: list[str]) -> None:
    text.append(f"{indent}{branch['ranks']}: {branch['frame']}")
    parts = len(branch["children"]) > 1
    for child in branch["children"]:
        _write(child, indent + "  " * parts, text)
