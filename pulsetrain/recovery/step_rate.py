"""How many steps a job completes in a second, from what its heartbeats tell."""

from __future__ import annotations

from collections import deque

SPAN_S = 10.0


class StepRate:
    """The rate over the last ten seconds. It starts anew where the steps go back."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._rose_s: float | None = None
        self._last_s = 0.0

    def note(self, step: int, now_s: float) -> None:
        """The newest step is `step`, -1 for none: the next one may be far ahead and says nothing."""
        if step < 0 or (self._seen and step < self._seen[-1][1]):
            self._seen.clear()
            self._rose_s, self._last_s = None, 0.0
        if step < 0:
            return
        if self._seen and step > self._seen[-1][1]:
            if self._rose_s is not None:
                self._last_s = (now_s - self._rose_s) / (step - self._seen[-1][1])
            self._rose_s = now_s
        self._seen.append((now_s, step))
        while now_s - self._seen[0][0] > SPAN_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        """Steps a second, 0 while unknown.

        >>> rate = StepRate()
        >>> rate.note(10, 0.0), rate.note(30, 4.0), rate.per_s
        (None, None, 5.0)
        """
        if not self._seen:
            return 0.0
        (began_s, first), (ended_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended_s - began_s) if ended_s > began_s else 0.0

    @property
    def step_s(self) -> float:
        """How long a step takes, 0 while unknown. Steps may take longer than the ten seconds.

        >>> rate = StepRate()
        >>> for at_s in range(0, 100, 2):
        ...     rate.note(at_s // 30, at_s)
        >>> rate.per_s, rate.step_s
        (0.1, 30.0)
        """
        return max(1 / self.per_s if self.per_s else 0.0, self._last_s)
