"""How soon the arenas must be looked at again: seldom while no rank can have saved, often when one may."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

QUIET_S = 10.0  # after so long without a save the arenas are looked at less often
QUIET_POLL_S = 0.25
EARLY = 0.7  # share of the shortest time between saves in which no save is expected
KNOWN_GAPS, LEAST_GAPS = 8, 3


class SavePace:
    """Learns from the saves of one node's ranks when the next are due. Times are seconds of one clock.

    `eager`: training waits for replicas, so after a save all looks are `poll_s` apart.
    """

    def __init__(self, poll_s: float, *, eager: bool = False) -> None:
        self._poll_s, self._eager = poll_s, eager
        self._saved_s = self._round_s = -math.inf
        self._saved: set[int] = set()
        self._gaps: deque[float] = deque(maxlen=KNOWN_GAPS)

    def saved(self, ranks: Collection[int], watched: Collection[int], now_s: float) -> None:
        """`ranks` were seen to have saved, of all that are watched. A round ends when each of them has."""
        if not ranks:
            return
        self._saved_s = now_s
        self._saved |= set(ranks)
        if self._saved >= set(watched):
            self._saved.clear()
            if math.isfinite(self._round_s):
                self._gaps.append(now_s - self._round_s)
            self._round_s = now_s

    def begun(self, now_s: float) -> None:
        """Ranks start, so a save may be near. Nothing is known of when it comes."""
        self._saved_s = now_s
        self._gaps.clear()
        self._round_s = -math.inf
        self._saved.clear()

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait for the next look."""
        if now_s - self._saved_s > QUIET_S:
            return max(self._poll_s, QUIET_POLL_S)
        gaps = tuple(self._gaps)  # another thread may clear them
        if self._eager or self._saved or len(gaps) < LEAST_GAPS:
            return self._poll_s
        left_s = self._round_s + EARLY * min(gaps) - now_s
        return max(self._poll_s, min(left_s, QUIET_POLL_S))
