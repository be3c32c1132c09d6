"""An event loop whose time passes where the code under test uses the processor, and where all wait.

So a minute of waiting takes no time, what plays the other side costs nothing, and other work on the machine
changes little.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
BEGAN_NS = 1_700_000_000_000_000_000


class VirtualClock:
    """A `Clock` of one thread: seconds that were waited, and its processor time without that of `outside`."""

    def __init__(self) -> None:
        self._outside_s = 0.0
        self._began_s = self._base_s = time.thread_time()
        self._stands_at_s: float | None = None

    def worked_s(self) -> float:
        """Processor seconds so far of the code under test."""
        now_s = time.thread_time() if self._stands_at_s is None else self._stands_at_s
        return now_s - self._began_s - self._outside_s

    def monotonic_s(self) -> float:
        """See `Clock`. It is asked for each message, so its own time counts little."""
        now_s = self._stands_at_s
        return (time.thread_time() if now_s is None else now_s) - self._base_s

    def wall_ns(self) -> int:
        """See `Clock`."""
        return BEGAN_NS + int(1e9 * self.monotonic_s())

    def wait(self, seconds: float) -> None:
        """Nothing is to be done for so long."""
        self._base_s -= seconds

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What the block does is not the code under test: time stands still."""
        began_s = self._stands_at_s = time.thread_time()
        try:
            yield
        finally:
            self._stands_at_s = None
            outside_s = time.thread_time() - began_s
            self._outside_s += outside_s
            self._base_s += outside_s


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Where no file is ready, the time until the next timer passes at once."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Files that are ready. It blocks only where no timer is set: then a thread must answer first."""
        ready: list[Any] = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self._clock.wait(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in the time of a `VirtualClock`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        """Seconds of the virtual clock."""
        return self._virtual.monotonic_s()


def run(work: Coroutine[Any, Any, T], clock: VirtualClock) -> T:
    """Run `work` to its end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(work)
