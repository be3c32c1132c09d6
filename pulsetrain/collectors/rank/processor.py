"""What a rank's main thread loses to other processes on its processor, step by step."""

from __future__ import annotations

import os
import time

from pulsetrain.collectors.layout import span_context, span_head
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.quota import Quota
from pulsetrain.records.schema import CATEGORIES

SHARE = 200  # a loss is written if it is at least 1/200 of the step


def install(handle: Handle) -> None:
    """Record it from now on for the calling thread.

    Call it once. Raises `OSError` if the kernel does not say.
    """
    if handle.state is not None:
        handle.state.processor = ProcessorWaits(handle.state, RunQueue())


class RunQueue:
    """How long its thread ran, and how long it was runnable without a processor."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        """Return the nanoseconds since the thread began. Takes about a microsecond."""
        return int(os.pread(self._fd, 64, 0).split()[1])

    def ran_ns(self) -> int:
        """Return the nanoseconds since the thread began. The kernel's file lags behind by up to a tick."""
        return time.thread_time_ns()


class ProcessorWaits:
    """Records where the main thread's time went that was neither work nor a wait for other ranks.

    Of every step, `cpu_wait` is the time in a run queue. `off_cpu` is the time in which the thread neither
    ran nor could have run: it was stopped, held back by a quota of its own, or waited for a disk, a device or
    another thread. Each span begins with the step and is as long as all its pieces together. Time in which
    the main thread stands still for a collective does not count.
    """

    __slots__ = (
        *("_blocked", "_depth", "_entered", "_heads", "_held", "_in_waits", "_lane", "_queue", "_quota"),
        *("_ring", "_seen", "_state"),
    )

    def __init__(self, state: RankState, queue: RunQueue, quota: Quota | None = None) -> None:
        self._quota = quota or Quota()
        self._held = self._quota.held_ns()
        self._state, self._ring, self._queue = state, state.ring, queue
        other = CATEGORIES.index("other")
        self._heads = [span_head(state.ring.intern(name), other) for name in ("cpu_wait", "off_cpu")]
        self._lane = state.ring.intern("run queue")
        self._depth = self._blocked = 0
        self._in_waits = (0, 0)  # waited and ran, while it stood still for others
        self._seen = self._entered = self._now()

    def _now(self) -> tuple[int, int]:
        return self._queue.waited_ns(), self._queue.ran_ns()

    def enter_wait(self) -> None:
        """Note that the main thread begins to wait for other ranks. Waits may nest."""
        self._depth += 1
        if self._depth == 1:
            self._entered = self._now()

    def leave_wait(self) -> None:
        """Note that it is over. Each call follows one of `enter_wait`."""
        self._depth -= 1
        if self._depth == 0:
            self._add_wait(self._now())

    def _add_wait(self, now: tuple[int, int]) -> None:
        waited, ran = (
            had + end - begin for had, end, begin in zip(self._in_waits, now, self._entered, strict=True)
        )
        self._in_waits = waited, ran

    def end_step(self, step: int, start: int, duration: int) -> None:
        """Write what the step lost, unless that is next to nothing."""
        now, waiting = self._now(), self._depth > 0
        if waiting:
            self._add_wait(now)
            self._entered = now
        since = zip(now, self._seen, self._in_waits, strict=True)
        waited, ran = (end - begin - inside for end, begin, inside in since)
        off = duration - (self._state.blocked - self._blocked) - waited - ran
        self._seen, self._in_waits, self._blocked = now, (0, 0), self._state.blocked
        held, self._held = self._held, self._quota.held_ns()
        quota = min(max(0, waited), self._held - held)  # in the run queue, as the kernel sees it
        for head, lost in zip(self._heads, (waited - quota, 0 if waiting else off + quota), strict=True):
            if lost * SHARE > duration:
                self._ring.span(head, span_context(step, -1, self._lane), start, start + lost)
