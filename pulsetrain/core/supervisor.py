"""Runs named loops so that no exception ends one unseen.

A loop is a function that does one turn and returns the seconds until its next turn. `TaskSupervisor` runs
loops as tasks of an event loop, `ThreadSupervisor` each on a thread of its own. An exception that leaves a
turn is logged with the loop's name and counted, and the loop goes on after `RESTART_DELAY_S`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import PulsetrainError

log = structlog.get_logger()

T = TypeVar("T")

RESTART_DELAY_S = 0.5
"""Pause after a turn that failed."""

Turn = Callable[[], float]
"""Does one turn of a loop on a thread. Returns the seconds until the next."""
AsyncTurn = Callable[[], Awaitable[float | None]]
"""The same on an event loop. None ends the loop."""


@dataclass(frozen=True, kw_only=True)
class LoopStatus:
    """How one loop is.

    `turns` counts turns that ended without an exception, `failures` those that raised one, and
    `failures_in_a_row` the failures since the last good turn. `last_error` is one line, "" while there was
    none. `age_s` is the time since the last good turn, or since the loop was added. `stale`: `age_s` is above
    the loop's limit.
    """

    name: str
    turns: int
    failures: int
    failures_in_a_row: int
    last_error: str
    age_s: float
    stale: bool


class LoopMonitor:
    """Counts the turns of one loop. Only the loop writes. Any thread may read the status."""

    def __init__(self, name: str, *, stale_after_s: float, clock: Clock) -> None:
        self.name = name
        self._stale_after_s, self._clock = stale_after_s, clock
        self._turns = self._failures = self._failures_in_a_row = 0
        self._last_error = ""
        self._completed_s = clock.monotonic_s()

    def completed(self) -> None:
        """A turn ended without an exception."""
        self._turns += 1
        self._failures_in_a_row = 0
        self._completed_s = self._clock.monotonic_s()

    def failed(self, error: BaseException) -> None:
        """A turn raised `error`. It is logged with a traceback, unless it is one of Pulsetrain's own errors,
        whose line says it all, or the same as in the turn before."""
        line = one_line(error)
        repeated = self._failures_in_a_row > 0 and line == self._last_error
        brief = repeated or isinstance(error, PulsetrainError)
        self._failures += 1
        self._failures_in_a_row += 1
        self._last_error = line
        if brief:
            log.error("loop_failed", loop=self.name, error=line, failures=self._failures)
        else:
            log.error("loop_failed", loop=self.name, error=line, failures=self._failures, exc_info=error)

    def status(self) -> LoopStatus:
        """How the loop is now."""
        age_s = max(0.0, self._clock.monotonic_s() - self._completed_s)
        return LoopStatus(
            name=self.name,
            turns=self._turns,
            failures=self._failures,
            failures_in_a_row=self._failures_in_a_row,
            last_error=self._last_error,
            age_s=age_s,
            stale=age_s > self._stale_after_s,
        )


class TaskSupervisor:
    """Loops that are tasks of one event loop, and work that is done once."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        restart_delay_s: float = RESTART_DELAY_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._restart_delay_s, self._sleep = clock or SystemClock(), restart_delay_s, sleep
        self._started = False
        self._loops: dict[LoopMonitor, AsyncTurn] = {}
        self._once: dict[str, LoopMonitor] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, name: str, turn: AsyncTurn, *, stale_after_s: float) -> None:
        """A loop that begins with `start`, or now where that was called. It is stale after so many seconds
        without a good turn. A turn that returns None ends its loop, which is then shown no more."""
        monitor = LoopMonitor(name, stale_after_s=stale_after_s, clock=self._clock)
        self._loops[monitor] = turn
        if self._started:
            self._spawn(name, self._run(monitor, turn))

    def start(self) -> None:
        """Run every loop on the event loop of the caller."""
        self._started = True
        for monitor, turn in self._loops.items():
            self._spawn(monitor.name, self._run(monitor, turn))

    def once(self, name: str, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Begin `work` as a task. It is counted as a turn of `name`, which is never stale. An exception is
        logged, and raised again to whoever waits for the task."""
        monitor = self._once.setdefault(name, LoopMonitor(name, stale_after_s=math.inf, clock=self._clock))
        task = asyncio.create_task(work, name=name)
        self._spawn(name, _count(task, monitor))
        return task

    @property
    def started(self) -> bool:
        """Whether the loops run."""
        return self._started

    async def stop(self) -> None:
        """End every loop in the middle of its turn, and all work."""
        self._started = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statuses(self) -> list[LoopStatus]:
        """How every loop is now, in the order in which they were added, then the work that is done once."""
        return [monitor.status() for monitor in (*self._loops, *self._once.values())]

    def _spawn(self, name: str, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, monitor: LoopMonitor, turn: AsyncTurn) -> None:
        while True:
            wait_s: float | None = self._restart_delay_s
            try:
                wait_s = await turn()
            except asyncio.CancelledError as error:
                if _stopping():
                    raise
                monitor.failed(error)  # something that the turn waited for was cancelled
            except Exception as error:  # noqa: BLE001 - the edge of a loop: counted, logged, shown
                monitor.failed(error)
            else:
                monitor.completed()
            if wait_s is None:
                del self._loops[monitor]
                return
            # `wait_for` of Python 3.11 loses a cancellation that comes together with what it waits for.
            if _stopping():
                raise asyncio.CancelledError
            await self._sleep(wait_s)


async def _count(task: asyncio.Task[T], monitor: LoopMonitor) -> None:
    """Wait for a task and note how it ended."""
    try:
        await task
    except asyncio.CancelledError:
        task.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - logged and counted; who waits for the task gets it too
        monitor.failed(error)
    else:
        monitor.completed()


def _stopping() -> bool:
    """Whether somebody cancelled the running task itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class LoopThread:
    """One loop on a thread of its own.

    `interrupt` ends what a turn may wait for. `stop` calls it.
    """

    def __init__(
        self,
        name: str,
        turn: Turn,
        *,
        stale_after_s: float,
        clock: Clock | None = None,
        restart_delay_s: float = RESTART_DELAY_S,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._turn, self._restart_delay_s, self._interrupt = turn, restart_delay_s, interrupt
        self._monitor = LoopMonitor(name, stale_after_s=stale_after_s, clock=clock or SystemClock())
        self._stopped, self._wake = False, threading.Event()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread has started and has not ended."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Begin the next turn now, or at once after the present one. Any thread may call it."""
        self._wake.set()

    def stop(self, timeout_s: float = 2.0) -> bool:
        """End after the present turn, for which it waits `timeout_s`. Whether the thread has ended."""
        self._stopped = True
        self._wake.set()
        self._interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> LoopStatus:
        """How the loop is now."""
        return self._monitor.status()

    def run(self) -> None:
        """Do turns until `stop`. The thread calls it."""
        while True:
            self._wake.clear()  # before the check: a `stop` that comes later ends the wait below
            if self._stopped:
                return
            wait_s = self._restart_delay_s
            try:
                wait_s = self._turn()
            except Exception as error:  # noqa: BLE001 - the edge of a loop: counted, logged, shown
                self._monitor.failed(error)
            else:
                self._monitor.completed()
            self._wake.wait(min(max(wait_s, 0.0), threading.TIMEOUT_MAX))


class ThreadSupervisor:
    """Loops that each have a thread of their own."""

    def __init__(self, clock: Clock | None = None, *, restart_delay_s: float = RESTART_DELAY_S) -> None:
        self._clock, self._restart_delay_s = clock or SystemClock(), restart_delay_s
        self._loops: list[LoopThread] = []

    def add(self, name: str, turn: Turn, *, stale_after_s: float) -> LoopThread:
        """A loop that begins with `start` of this supervisor. It can also be woken and stopped alone."""
        loop = LoopThread(
            name,
            turn,
            stale_after_s=stale_after_s,
            clock=self._clock,
            restart_delay_s=self._restart_delay_s,
        )
        self._loops.append(loop)
        return loop

    def start(self) -> None:
        """Start every thread."""
        for loop in self._loops:
            loop.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End every loop, the last one added first. Wait at most `timeout_s` for each."""
        for loop in reversed(self._loops):
            loop.stop(timeout_s)

    def statuses(self) -> list[LoopStatus]:
        """How every loop is now, in the order in which they were added."""
        return [loop.status() for loop in self._loops]


class FailureCollector:
    """Lets a turn finish with the other items when one of them raises.

    >>> failures = FailureCollector()
    >>> for divisor in (0, 1):
    ...     with failures.collect(f"divisor {divisor}"):
    ...         print(1 / divisor)
    1.0
    >>> failures.raise_any()
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    divisor 0
    """

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    @contextmanager
    def collect(self, what: str) -> Iterator[None]:
        """Keep an exception of the block for later. `what` is noted on it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again by `raise_any`
            error.add_note(what)
            self._errors.append(error)

    def raise_any(self) -> None:
        """Raise what was collected: the exception itself, or a group of several."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ExceptionGroup("several items failed", self._errors)


def one_line(error: BaseException) -> str:
    """Type and message of an exception on one line.

    >>> one_line(ValueError("no\\nrank"))
    'ValueError: no rank'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
