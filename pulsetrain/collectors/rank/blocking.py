"""Measures how long the main thread stands still for operations of its process groups.

A wait is what runs between `begin` and `end` on the main thread. Waits of other threads leave it alone. Waits
inside another wait count once. So the intervals are disjoint, and the part of a phase in which the rank did
its own work is the phase less the intervals inside it. That is no difference of sums of what may overlap.

Only groups whose operations end on the host count. A wait for work of a device returns at once. The device
stands still then, not the thread.
"""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns

from pulsetrain.collectors.layout import PACK_OPEN, STACK_END, WAITING
from pulsetrain.collectors.rank.operations import Operation
from pulsetrain.collectors.rank.phases import RankState


class Blocking:
    """The waits of one rank's main thread. Create it on that thread.

    `began`: when the wait that is on began, 0 while it waits for nobody.
    """

    __slots__ = ("_main", "_operation", "_shown", "_state", "began")

    def __init__(self, state: RankState) -> None:
        self._state = state
        self._main = get_ident()
        self.began = 0
        self._operation: Operation | None = None
        self._shown = -1

    def begin(self, operation: Operation) -> bool:
        """Begin a wait for `operation` and show it on the status page. Never raises, nor does `end`.

        Return whether `end` must follow. It must not on another thread, nor inside another wait.
        """
        if self.began or get_ident() != self._main:
            return False
        state = self._state
        self._operation = operation
        self.began = began = perf_counter_ns()
        at = state.top
        if at < STACK_END:
            PACK_OPEN(state.ring.memory, at, operation.head | WAITING, began)
            self._shown = at >> 3
        processor = state.processor
        if processor is not None and operation.blocked >= 0:
            processor.enter_wait(began)
        return True

    def end(self, *, counts: bool = True) -> int:
        """End the wait. Return its end.

        `counts`: the thread stood still meanwhile, as far as the operation ends on the host.
        """
        state, operation, began = self._state, self._operation, self.began
        self.began, self._operation = 0, None
        now = perf_counter_ns()
        if self._shown >= 0:
            state.words[self._shown] = 0
            self._shown = -1
        if operation is not None and operation.blocked >= 0:
            if counts:
                state.blocked += now - began
                operation.blocked += now - began
            processor = state.processor
            if processor is not None:  # it may ask how long the thread stood still so far
                processor.leave_wait(now)
        return now
