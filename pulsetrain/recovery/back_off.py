"""How long a job that fails again and again waits before it is launched again. Pure.

A job that fails at once, at each launch, keeps all of its nodes busy with launches. So from the second fault
in a row on it waits, each time twice as long. A fault after a stretch of progress is a first one.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.recovery.transitions import Event

COUNTED = (Event.RANK_FAILED, Event.HANG, Event.START_FAILED)
"""Faults whose restarts count. Lost and evicted nodes do not, because the next attempt runs without them."""
PROGRESS_STEPS = 5  # beyond the newest step of all attempts before


@dataclass(frozen=True, kw_only=True)
class BackOffLimits:
    """Seconds: the first wait, the longest one, and how long an attempt must run to count as progress."""

    first_s: float
    most_s: float
    progress_s: float


class BackOff:
    """Counts faults in a row. `failures` is how many there were, the present one included."""

    def __init__(self, limits: BackOffLimits) -> None:
        self.failures = 0
        self._limits = limits
        self._newest_step = -1

    def failed(self, *, step: int, ran_s: float) -> float:
        """An attempt has failed at `step` after so many seconds. Returns how long to wait, in seconds.

        >>> back_off = BackOff(BackOffLimits(first_s=1.0, most_s=60.0, progress_s=60.0))
        >>> [back_off.failed(step=3, ran_s=2.0) for _ in range(5)]
        [0.0, 1.0, 2.0, 4.0, 8.0]
        >>> back_off.failed(step=40, ran_s=9.0)
        0.0
        """
        if step - self._newest_step > PROGRESS_STEPS or ran_s >= self._limits.progress_s:
            self.failures = 0
        self._newest_step = max(self._newest_step, step)
        self.failures += 1
        return self._wait_s()

    def _wait_s(self) -> float:
        if self.failures < 2:
            return 0.0
        doublings = min(self.failures - 2, 64)
        return min(self._limits.first_s * 2.0**doublings, self._limits.most_s)
