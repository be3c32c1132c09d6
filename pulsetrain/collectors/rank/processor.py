"""What a rank's main thread loses to other processes on its processor, step by step."""

from __future__ import annotations

import os

from pulsetrain.collectors.layout import span_context, span_head
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.records.schema import CATEGORIES

SHARE = 200  # a step's loss is written from one part in so many of the step


def install(handle: Handle) -> None:
    """Record it from now on, for the calling thread; call it once. Raises `OSError` where the kernel does not
    say."""
    if handle.state is not None:
        handle.state.processor = ProcessorWaits(handle.state, RunQueue())


class RunQueue:
    """How long the thread that made it stood runnable without a processor, as Linux counts it in
    /proc/PID/task/TID/schedstat."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        """Nanoseconds since the thread began; about a microsecond to ask."""
        return int(os.pread(self._fd, 64, 0).split()[1])


class ProcessorWaits:
    """The run queue's share of every step, as spans `cpu_wait` that begin with the step and are as long as
    all its waits together. What passes while a collective is in flight does not count: there the rank waits
    for others, and its compute is told net of it.
    """

    __slots__ = ("_aside", "_entered", "_flying", "_head", "_lane", "_queue", "_ring", "_seen")

    def __init__(self, state: RankState, queue: RunQueue) -> None:
        self._ring, self._queue = state.ring, queue
        self._head = span_head(state.ring.intern("cpu_wait"), CATEGORIES.index("other"))
        self._lane = state.ring.intern("run queue")
        self._flying = self._entered = self._aside = 0
        self._seen = queue.waited_ns()

    def enter_collective(self) -> None:
        """An operation that ends on the host is in flight from now on."""
        self._flying += 1
        if self._flying == 1:
            self._entered = self._queue.waited_ns()

    def leave_collective(self) -> None:
        """It is over; each call follows one of `enter_collective`."""
        self._flying -= 1
        if self._flying == 0:
            self._aside += self._queue.waited_ns() - self._entered

    def end_step(self, step: int, start: int, duration: int) -> None:
        """Writes what the step lost, unless that is next to nothing."""
        now = self._queue.waited_ns()
        if self._flying > 0:
            self._aside += now - self._entered
            self._entered = now
        lost, self._seen, self._aside = now - self._seen - self._aside, now, 0
        if lost * SHARE > duration:
            self._ring.span(self._head, span_context(step, -1, self._lane), start, start + lost)
