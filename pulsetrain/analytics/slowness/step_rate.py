"""Whether the steps of a job have become longer, told from heartbeats alone. Pure and cheap.

It names nobody. It says when looking at the stored rows is worth its cost at once. Being wrong costs such a
look, so its limit is low: a fifth longer at most, less where steps are even.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

REMEMBERED_S = 60.0
REMEMBERED_POINTS = 60
"""Where steps are long, more than a minute is remembered."""
WINDOW_S = 1.9
"""Two heartbeats, one second apart."""
WINDOW_STEPS = 8
LONGEST_WINDOW_S = 7.9
"""Where steps are long, fewer steps do."""
LEAST_WINDOWS = 4
LOWEST, HIGHEST = 1.1, 1.2
"""Times the usual length, between which the limit is."""
SPREAD = 3.0
HEARTBEAT_S = 1.0
AGAIN_S = 40.0
USUAL_AGAIN_S = 5.0
"""Steps that have been as long as usual for so long may become suspicious again. Where they do within
`2 * AGAIN_S`, it takes twice as long each time, up to `AGAIN_S`: many jobs save every few seconds."""
STILL_STEPS = 4
STILL_S = 2.5
"""A step that takes so long, and several times as long as usual, is longer whatever it ends as."""


class StepRate:
    """Counts of completed steps of one attempt, each with the time at which it was true."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._suspected_s, self._suspected_length_s = -math.inf, 0.0
        self._longer_s = self._said_s = -math.inf
        self._usual_again_s = USUAL_AGAIN_S

    def note(self, step: int, at_s: float) -> None:
        """The newest completed step at a time, -1 for none. What is not newer says nothing."""
        if step < 0 or (self._points and (step <= self._points[-1][1] or at_s <= self._points[-1][0])):
            return
        self._points.append((at_s, step))
        while at_s - self._points[0][0] > REMEMBERED_S and len(self._points) > REMEMBERED_POINTS:
            self._points.popleft()

    @property
    def known(self) -> bool:
        """Whether it is known what is usual."""
        return len(self._lengths()) > LEAST_WINDOWS

    def changed(self, now_s: float) -> bool:
        """Whether steps take longer than usual, or it is not known yet what is usual.

        >>> rate = StepRate()
        >>> for second in range(20):
        ...     rate.note(10 * second, float(second))
        >>> rate.changed(19.5)
        False
        >>> rate.note(197, 20.0), rate.note(204, 21.0), rate.changed(21.0)
        (None, None, True)
        """
        lengths = self._lengths()
        return len(lengths) <= LEAST_WINDOWS or self._is_longer(lengths, now_s)

    def _is_longer(self, lengths: Sequence[float], now_s: float) -> bool:
        newest, *before = lengths
        usual = statistics.median(before)
        spread = statistics.median(abs(length - usual) for length in before) / usual
        counted_s = min(usual, HEARTBEAT_S)  # a count is up to one step or one heartbeat old
        window_s = min(max(WINDOW_S, WINDOW_STEPS * usual), LONGEST_WINDOW_S)
        limit = max(min(max(LOWEST, 1 + SPREAD * spread), HIGHEST), 1 + 2 * counted_s / window_s)
        still = self._still_s(now_s) > max(STILL_S, STILL_STEPS * usual)
        return still or newest > limit * usual

    def suspicious(self, now_s: float) -> bool:
        """Whether steps have become longer and that was not said already.

        Nothing is suspicious before it is known what is usual. It is said again after `AGAIN_S`, or at once
        where steps have become longer still. So uneven steps, as where programs compete for a processor, cost
        a look now and then.
        """
        lengths = self._lengths()
        if len(lengths) <= LEAST_WINDOWS:
            return False
        if not self._is_longer(lengths, now_s):
            if now_s - self._longer_s >= self._usual_again_s:
                self._suspected_s = -math.inf
            return False
        self._longer_s = now_s
        still_s = self._still_s(now_s)
        length_s = max(lengths[0], still_s if still_s > STILL_S else 0.0)
        if now_s - self._suspected_s < AGAIN_S and length_s <= LOWEST * self._suspected_length_s:
            return False
        self._suspected_s, self._suspected_length_s = now_s, length_s
        soon = now_s - self._said_s < 2 * AGAIN_S
        self._usual_again_s = min(2 * self._usual_again_s, AGAIN_S) if soon else USUAL_AGAIN_S
        self._said_s = now_s
        return True

    def _still_s(self, now_s: float) -> float:
        """How long ago the newest step was completed."""
        return now_s - self._points[-1][0]

    def _lengths(self) -> list[float]:
        """Length of a step in each window, the newest first."""
        lengths, end = [], self._points[-1] if self._points else (0.0, 0)
        for at_s, step in reversed(self._points):
            window_s, steps = end[0] - at_s, end[1] - step
            if window_s >= LONGEST_WINDOW_S or (window_s >= WINDOW_S and steps >= WINDOW_STEPS):
                lengths.append(window_s / steps)
                end = (at_s, step)
        return lengths
