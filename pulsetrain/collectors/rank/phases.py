"""Phases: what times a piece of a rank's work and shows it while it runs.

`Phase.__enter__` and `__exit__` are the hot path of the whole product: together with `Handle.phase` they take
less than a microsecond, which is why they inline `RingWriter.span` and touch as few words as they can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from threading import current_thread
from time import perf_counter_ns
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

from pulsetrain.collectors.layout import (
    PACK_OPEN,
    PACK_PHASE,
    PHASE,
    STACK_AT,
    STACK_END,
    W_ERRORS,
    W_STEP,
    span_context,
    span_head,
)
from pulsetrain.collectors.rank.ring import RingWriter
from pulsetrain.records.schema import CATEGORIES

_RUNNING_NUMBER = re.compile(r"(?<=^Thread)-\d+|(?<=^Dummy)-\d+|(?<=^ThreadPoolExecutor)-\d+")
"""In the names that Python gives: "Thread-7 (save)", "ThreadPoolExecutor-7_0"."""

DEFAULT_CATEGORY: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("forward", "backward", "optimizer"), "compute")
    | {"data": "data", "checkpoint": "checkpoint"}
    | dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "send", "recv"),
        "communication",
    )
)


class Span(Protocol):
    """A context manager that times what runs inside it."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class SharedByCopies:
    """Scripts keep such objects on modules, trainers and datasets, which are copied and pickled.

    A copy holds the same object. Where a pickled one is read, it does nothing.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return NoSpan, ()


class NoSpan(SharedByCopies):
    """A span that does nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


NO_SPAN = NoSpan()


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


class Processor(Protocol):
    """Counts the time that the main thread was runnable without a processor. Nothing of it raises."""

    def enter_wait(self, at: int) -> None: ...
    def leave_wait(self, at: int) -> None: ...
    def begin_steps(self, at: int) -> None: ...
    def end_step(self, step: int, start: int, duration: int) -> None: ...


class Turns(Protocol):
    """Turns on a device that several ranks share. `held` is the one that this rank has, -1 for none."""

    @property
    def held(self) -> int: ...
    def leave(self) -> None: ...
    def enter(self) -> None: ...
    def refuse(self) -> None: ...


class RankState:
    """What all phases of a process share: the ring, the open phases of the main thread, step and microbatch.

    - `top`: where the main thread's next open phase goes on the status page.
    - `parent`: the innermost open phase, as bits of a span's head.
    - `context`: step, microbatch and lane, as a slot stores them.
    - `pending`: operations that are not known to have ended. `poll` asks them. `settle` does so at the end of
      a step. The collectives set all three.
    - `turns`: gives its device to others while it waits for them, where several ranks share one.
    - `gives_device_in_waits`: whether the hooks of collectives do so around their waits.
    - `processor`: told of waits for other ranks and of steps, if it is set.
    - `transfers`: whether this rank has sent to another one, or received.
    - `update_lost`: whether parameters are those of half an update, which another rank has not ended.
    - `blocked`: ns that the main thread has stood still for communication since the process began. It only
      grows, so what it grew by inside a phase is the part of the phase that is no work of the rank's own.
    """

    __slots__ = (
        *("blocked", "context", "gives_device_in_waits", "lane", "parent", "pending", "poll"),
        *("processor", "ring", "settle", "step", "top", "transfers", "turns", "update_lost", "words"),
    )

    def __init__(self, ring: RingWriter) -> None:
        self.ring = ring
        self.words = ring.words
        self.top = STACK_AT
        self.parent = 0
        self.blocked = 0
        self.lane = ring.intern("host")
        self.enter_step(0)
        self.pending: Mapping[object, object] = {}
        self.poll: Callable[[], None] = _nothing
        self.settle: Callable[[], None] = _nothing
        self.processor: Processor | None = None
        self.transfers = False
        self.turns: Turns | None = None
        self.update_lost: Callable[[], bool] = _never
        self.gives_device_in_waits = False

    def enter_step(self, step: int) -> None:
        """From now on spans that end belong to this step, and to no microbatch."""
        self.step = step
        self.words[W_STEP] = step
        self.enter_microbatch(-1)

    def enter_microbatch(self, microbatch: int) -> None:
        """From now on spans that end belong to this microbatch. -1: to none."""
        self.context = span_context(self.step, microbatch, self.lane)

    def fault(self) -> None:
        """Count something that went wrong inside Pulsetrain."""
        self.words[W_ERRORS] += 1


class Phase(SharedByCopies):
    """A named phase of the main thread on the host clock. One object serves every entry, nested ones too."""

    __slots__ = (
        *("_as_parent", "_blocked", "_busy", "_head", "_memory", "_outer", "_ring", "_saved", "_start"),
        "_state",
    )

    def __init__(self, state: RankState, name: int, category: int) -> None:
        self._state = state
        self._ring = state.ring
        self._memory = state.ring.memory
        self._head = span_head(name, category, kind=PHASE)
        self._as_parent = name << 32
        self._busy = 0  # entries that have not been left
        self._start = self._outer = self._blocked = 0
        self._saved: list[tuple[int, int, int]] = []  # start, outer phase, blocked: of all but the last

    def __enter__(self) -> None:
        busy = self._busy
        self._busy = busy + 1
        if busy:
            self._saved.append((self._start, self._outer, self._blocked))
        state = self._state
        self._blocked = state.blocked
        self._start = start = perf_counter_ns()
        self._outer = state.parent
        state.parent = self._as_parent
        at = state.top
        state.top = at + 16
        if at < STACK_END:
            PACK_OPEN(self._memory, at, self._head, start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        end = perf_counter_ns()
        if self._busy != 1:
            self._leave_nested(end)
            return
        self._busy = 0
        state = self._state
        state.top = at = state.top - 16
        parent = state.parent = (
            self._outer if at != STACK_AT else 0
        )  # 0 mends what leaving out of order broke
        if at < STACK_END:
            state.words[at >> 3] = 0
        try:
            at, mark = self._ring.claim()
            PACK_PHASE(
                self._memory, at, self._head | parent, state.context, self._start, end,
                state.blocked - self._blocked, mark,
            )  # fmt: skip
        except StopIteration:
            self._write(parent, end)
        if state.pending:
            state.poll()

    def leave(self) -> int:
        """Close the phase without writing a span. Returns its parent's bits. `__exit__` has this inline."""
        state = self._state
        self._busy -= 1
        state.top = at = max(STACK_AT, state.top - 16)
        parent = state.parent = self._outer if at != STACK_AT else 0
        if at < STACK_END:
            state.words[at >> 3] = 0
        return parent

    def resume_outer(self) -> None:
        """After `leave` inside another entry of the same phase, make that entry the current one again."""
        if self._saved:
            self._start, self._outer, self._blocked = self._saved.pop()

    def _leave_nested(self, end: int) -> None:
        """Leave an entry inside another one. A leave without an entry is counted."""
        if not self._busy:
            self._state.fault()
            return
        self._write(self.leave(), end)
        self.resume_outer()

    def _write(self, parent: int, end: int) -> None:
        slot = self._ring.next_slot()
        if slot is not None:
            at, mark = slot
            blocked = self._state.blocked - self._blocked
            PACK_PHASE(
                self._memory, at, self._head | parent, self._state.context, self._start, end, blocked, mark
            )


class CommunicationPhase(Phase):
    """A phase in which the script communicates by means of its own: all of it is time stood still."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._busy:
            self._state.blocked = self._blocked + perf_counter_ns() - self._start
        super().__exit__(kind, error, trace)


class ThreadPhase(SharedByCopies):
    """A phase of another thread than the main one. It is recorded when it ends, in a lane of its own.

    Threads that a script makes for each save, and gives no name, share a lane.
    """

    __slots__ = ("_head", "_lane", "_start", "_state")

    def __init__(self, state: RankState, name: int, category: int) -> None:
        self._state = state
        self._head = span_head(name, category, kind=PHASE)
        self._lane = state.ring.intern(_RUNNING_NUMBER.sub("", current_thread().name), by_script=True)
        self._start = 0

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        state = self._state
        context = span_context(state.step, -1, self._lane)
        state.ring.span(self._head, context, self._start, perf_counter_ns(), blocked=0)


def category_number(name: str, category: str | None) -> int:
    """Return the index of the category in `CATEGORIES`. Raises `ValueError` for one that is not in it."""
    return CATEGORIES.index(category if category is not None else DEFAULT_CATEGORY.get(name, "other"))
