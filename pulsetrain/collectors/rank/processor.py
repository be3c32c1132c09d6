"""What a rank's main thread loses to other processes on its processor, step by step."""

from __future__ import annotations

import os

from pulsetrain.collectors.layout import span_context, span_head
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.records.schema import CATEGORIES

SHARE = 200  # a loss is written if it is at least 1/200 of the step


def install(handle: Handle) -> None:
    """Record it from now on for the calling thread.

    Call it once. Raises `OSError` if the kernel does not say.
    """
    if handle.state is not None:
        handle.state.processor = ProcessorWaits(handle.state, RunQueue())


class RunQueue:
    """Time that its thread was runnable without a processor, from /proc/PID/task/TID/schedstat."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        """Return the nanoseconds since the thread began. Takes about a microsecond."""
        return int(os.pread(self._fd, 64, 0).split()[1])


class ProcessorWaits:
    """Records the run queue's share of every step as a span `cpu_wait`.

    The span begins with the step and is as long as all its waits together. Time while a collective is in
    flight does not count: the rank waits for others then, and its compute is measured without it.
    """

    __slots__ = ("_entered", "_head", "_in_collectives", "_in_flight", "_lane", "_queue", "_ring", "_seen")

    def __init__(self, state: RankState, queue: RunQueue) -> None:
        self._ring, self._queue = state.ring, queue
        self._head = span_head(state.ring.intern("cpu_wait"), CATEGORIES.index("other"))
        self._lane = state.ring.intern("run queue")
        self._in_flight = self._entered = self._in_collectives = 0
        self._seen = queue.waited_ns()

    def enter_collective(self) -> None:
        """Note that an operation that ends on the host is in flight."""
        self._in_flight += 1
        if self._in_flight == 1:
            self._entered = self._queue.waited_ns()

    def leave_collective(self) -> None:
        """Note that it is over. Each call follows one of `enter_collective`."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._in_collectives += self._queue.waited_ns() - self._entered

    def end_step(self, step: int, start: int, duration: int) -> None:
        """Write what the step lost, unless that is next to nothing."""
        now = self._queue.waited_ns()
        if self._in_flight > 0:
            self._in_collectives += now - self._entered
            self._entered = now
        lost, self._seen, self._in_collectives = now - self._seen - self._in_collectives, now, 0
        if lost * SHARE > duration:
            self._ring.span(self._head, span_context(step, -1, self._lane), start, start + lost)
