"""Which row numbers have arrived: a set of integers kept as disjoint half-open ranges."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class Ranges:
    """Half-open ranges of integers, merged where they touch."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)

    def add(self, first: int, end: int) -> tuple[int, int]:
        """Add [first, end). Returns the range that now holds it."""
        left = bisect.bisect_left(self._ends, first)
        right = bisect.bisect_right(self._firsts, end)
        if left < right:
            first = min(first, self._firsts[left])
            end = max(end, self._ends[right - 1])
        self._firsts[left:right] = [first]
        self._ends[left:right] = [end]
        return first, end

    def remove(self, first: int, end: int) -> None:
        """Take [first, end) out. What was not in the set changes nothing."""
        left = bisect.bisect_right(self._ends, first)
        right = bisect.bisect_left(self._firsts, end)
        if left >= right:
            return
        low, high = self._firsts[left], self._ends[right - 1]
        kept = [(a, b) for a, b in ((low, first), (end, high)) if a < b]
        self._firsts[left:right] = [a for a, _ in kept]
        self._ends[left:right] = [b for _, b in kept]

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of [first, end) that are not in the set, in order."""
        gaps = []
        for index in range(bisect.bisect_right(self._ends, first), len(self._firsts)):
            if self._firsts[index] >= end:
                break
            if first < self._firsts[index]:
                gaps.append((first, self._firsts[index]))
            first = max(first, self._ends[index])
        if first < end:
            gaps.append((first, end))
        return gaps
