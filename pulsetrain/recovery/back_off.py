"""How long a job that fails again and again waits before it is launched again. Pure.

A job that fails at once, at each launch, keeps all of its nodes busy with launches. So from the second fault
in a row on it waits, each time twice as long. A fault after a stretch of progress is a first one.

Where machines come and go, nodes that are lost are no sign of trouble. One that is lost again before the job
got on is, and so is the third in a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pulsetrain.recovery.transitions import Event

COUNTED = (Event.RANK_FAILED, Event.HANG, Event.START_FAILED)
"""Faults whose restarts count. Lost and evicted nodes do not, because the next attempt runs without them."""
FREE_LOSSES = 2
"""Nodes that may be lost in a row before a launch waits. A rack goes as a whole, not in one moment."""
PROGRESS_STEPS = 5  # beyond the newest step of all attempts before


@dataclass(frozen=True, kw_only=True)
class BackOffLimits:
    """Seconds: the first wait, the longest one, and how long an attempt must run to count as progress."""

    first_s: float
    most_s: float
    progress_s: float


class BackOff:
    """Counts faults in a row. `failures` is how many there were, the present one included.

    `losses` are the lost nodes among them, which count apart: how often each was lost.
    """

    def __init__(self, limits: BackOffLimits) -> None:
        self.failures = 0
        self.losses: Counter[str] = Counter()
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
        self._note(step, ran_s)
        self.failures += 1
        return self._wait_s(self.failures)

    def lost(self, node: str, *, step: int, ran_s: float) -> float:
        """An attempt has lost a node at `step` after so many seconds. Returns how long to wait, in seconds.

        >>> back_off = BackOff(BackOffLimits(first_s=1.0, most_s=60.0, progress_s=60.0))
        >>> [back_off.lost(node, step=3, ran_s=2.0) for node in "aabcd"]
        [0.0, 1.0, 1.0, 2.0, 4.0]
        >>> back_off.lost("a", step=40, ran_s=9.0)
        0.0
        """
        self._note(step, ran_s)
        self.losses[node] += 1
        return self._wait_s(max(self.losses[node], self.losses.total() - FREE_LOSSES + 1))

    def found(self, node: str) -> None:
        """The node was not lost after all: its ranks have gone on."""
        self.losses -= Counter([node])

    def _note(self, step: int, ran_s: float) -> None:
        if step - self._newest_step > PROGRESS_STEPS or ran_s >= self._limits.progress_s:
            self.failures = 0
            self.losses.clear()
        self._newest_step = max(self._newest_step, step)

    def _wait_s(self, in_a_row: int) -> float:
        if in_a_row < 2:
            return 0.0
        doublings = min(in_a_row - 2, 64)
        return min(self._limits.first_s * 2.0**doublings, self._limits.most_s)
