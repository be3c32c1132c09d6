"""Tells a person that the hub is not reached. An agent tries for ever, which looks like a hang."""

from __future__ import annotations

from collections.abc import Callable

from pulsetrain.core.clock import Clock, SystemClock

FIRST_S = 5.0
"""A hub that restarts is back sooner."""
FACTOR = 4
LONGEST_S = 3600.0
"""Time between two lines."""


class HubNotice:
    """Says it after a few seconds, then ever more rarely, and once more when the hub is there again."""

    def __init__(self, say: Callable[[str], None], clock: Clock | None = None) -> None:
        self._say, self._clock = say, clock or SystemClock()
        self._since_s: float | None = None
        self._next_s = FIRST_S

    def failed(self, why: str) -> None:
        """The hub could not be reached, or is gone. `why` is one line."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= self._next_s:
            self._say(f"{why}. Still trying after {now_s - self._since_s:.0f} s.")
            self._next_s = now_s - self._since_s
            self._next_s += min(self._next_s * (FACTOR - 1), LONGEST_S)

    def reached(self, url: str) -> None:
        """The hub at `url` is there."""
        if self._next_s > FIRST_S:
            self._say(f"hub {url} is reached")
        self._since_s, self._next_s = None, FIRST_S
