"""UTC of what a rank recorded, also where the machine was suspended or its wall clock was set since.

A rank takes what its clock lacks to UTC once, as it starts. Its clock stands still while the machine is
suspended, and the wall clock may be set in the meantime. Then all that begins later is some time off.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SHIFTED_NS = 1_000_000_000
"""Nothing is corrected that is less off. Clocks of nodes that are so far apart are compared all the same."""


class RingClock:
    """Turns times of one ring into UTC. A time is always turned into the same, however late it is asked for.

    What began before a shift was noticed keeps the old difference: it may have been reported already.
    """

    def __init__(self, wall_ns: Callable[[], int] = lambda: time.time_ns()) -> None:
        self._wall_ns = wall_ns
        self._since: list[int] = []
        self._shifts: list[int] = [0]

    def look(self, told_ns: Callable[[], int], offset_ns: int) -> None:
        """Compare the UTC that the rank would tell with the wall clock. `offset_ns`: see `utc`.

        It is 0 until the rank has started: then there is nothing to compare. The rank's is read before and
        after: whatever the wall clock says in between is no shift.
        """
        if not offset_ns:
            return
        before, wall, after = told_ns(), self._wall_ns(), told_ns()
        shift = min(wall - before, 0) or max(wall - after, 0)
        if abs(shift - self._shifts[-1]) >= SHIFTED_NS:
            self._since.append(after - offset_ns)
            self._shifts.append(shift)

    def utc(self, ring_ns: int, offset_ns: int) -> int:
        """UTC of a time of the ring. `offset_ns` is what the rank's clock lacked to UTC as it started."""
        return ring_ns + offset_ns + self._shifts[bisect_right(self._since, ring_ns)]

    def all_utc(self, ring_ns: Ints, offset_ns: int) -> Ints:
        """`utc` of each time."""
        shifts = np.array(self._shifts)[np.searchsorted(self._since, ring_ns, side="right")]
        return np.asarray(ring_ns + offset_ns + shifts)

    def forget(self) -> None:
        """The rank's own difference to UTC was written anew."""
        self._since, self._shifts = [], [0]
