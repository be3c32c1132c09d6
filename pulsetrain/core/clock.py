"""The two clocks that everything takes as an argument: monotonic to wait, UTC nanoseconds to record."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a component needs to know of time."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        ...

    def wall_ns(self) -> int:
        """UTC nanoseconds since 1970."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()
