"""Whether a point was passed, from what the ranks wrote down. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

Line = tuple[int, int, int, str, int]
"""Rank, attempt, pid, word and step, in the order of each rank."""
RANKS = 2
LAST_STEPS, MOST_SAVES = 40, 2


def saved(lines: Iterable[Line]) -> int:
    """The newest step that all ranks have saved in one attempt, -1 for none.

    >>> saved([(0, 0, 7, "saved", 50), (1, 0, 8, "saved", 50), (0, 0, 7, "saved", 51)])
    50
    """
    newest: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, attempt, _, word, step in lines:
        if word == "saved":
            newest[attempt][rank] = step
    return max((min(of.values()) for of in newest.values() if len(of) == RANKS), default=-1)


def attempt_of(lines: Iterable[Line]) -> int:
    """The newest attempt of which a rank has written anything, -1 for none."""
    return max((attempt for _, attempt, *_ in lines), default=-1)


def done(lines: Iterable[Line]) -> int:
    """How many steps all ranks have done together, those that were done again included."""
    return sum(word == "did" for _, _, _, word, _ in lines)


def redone(lines: Iterable[Line]) -> int:
    """Steps that were done again, by the rank that did most of them again."""
    times = Counter((rank, step) for rank, _, _, word, step in lines if word == "did")
    again: Counter[int] = Counter()
    for (rank, _), count in times.items():
        again[rank] += count - 1
    return max(again.values(), default=0)


def lost(lines: Iterable[Line], after: int, bound: int) -> list[str]:
    """Attempts later than `after` that began before the step `bound`, which was saved."""
    begun = sorted({(attempt, step) for _, attempt, _, word, step in lines if word == "restored"})
    return [
        f"attempt {attempt} began after step {step}, step {bound} was saved"
        for attempt, step in begun
        if attempt > after and step < bound
    ]


def still_saves(lines: Sequence[Line], steps: int) -> list[str]:
    """Ranks that save every step in the end, in the last attempt, as they are asked to before a move only."""
    last, first = attempt_of(lines), steps - LAST_STEPS
    found = (
        r for r, attempt, _, word, step in lines if word == "saved" and attempt == last and step >= first
    )
    late = Counter(found)
    return [f"rank {rank} saves every step for ever" for rank, n in sorted(late.items()) if n > MOST_SAVES]


def doubled(live: Mapping[int, Sequence[int]]) -> list[str]:
    """Ranks that more than one process runs."""
    return [f"rank {rank} runs {len(pids)} times" for rank, pids in sorted(live.items()) if len(pids) > 1]
