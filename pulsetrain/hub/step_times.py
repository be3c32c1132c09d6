"""How long a step of a job takes, from the moments when its step counter moved. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from itertools import pairwise

MOVES = 50


class StepTimes:
    """The last moves of one attempt's step counter."""

    def __init__(self) -> None:
        self._moves: deque[tuple[int, float]] = deque(maxlen=MOVES)

    def note(self, step: int, now_s: float) -> None:
        """The newest completed step now, -1 for none."""
        if step >= 0 and (not self._moves or step > self._moves[-1][0]):
            self._moves.append((step, now_s))

    @property
    def median_ns(self) -> int:
        """Median time of a step over the last moves, 0 while unknown."""
        times = [(t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(self._moves)]
        return int(statistics.median(times) * 1e9) if times else 0
