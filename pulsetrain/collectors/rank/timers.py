"""Phases and numbers of a CUDA device, through pooled events that are queried and never waited for.

A phase records one event when it is entered and one when it is left. The pair becomes a span once a query
says that both have passed, at a later phase or step. Events give durations. Their times on the host's clock
follow from two facts that need no synchronisation: an event cannot pass before the host has recorded it, and
it has passed when a query says so.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from pulsetrain.collectors.layout import span_head
from pulsetrain.collectors.rank.phases import Phase, RankState

if TYPE_CHECKING:
    import torch

REBASE_MS = 30_000.0  # elapsed times are single precision: beyond this their steps exceed 2 us
REBASE_SLACK_NS = 10_000  # what rounding may have added to the estimate since the last base
MAX_PENDING = 4096  # phases whose events have not passed; more are reported with the host's times


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Self, /) -> float: ...


class EventPool:
    """Events that are used again, because creating one costs more than recording it."""

    def __init__(self, create: Callable[[], Event]) -> None:
        self._create = create
        self._free: list[Event] = []

    def recorded(self) -> Event:
        """Return an event that was just recorded on the current stream.

        An event belongs to the device on which it was first recorded. The script may have gone to another.
        """
        event = self._free.pop() if self._free else self._create()
        try:
            event.record()
        except Exception:
            if not self._free:
                raise
            self._free.clear()
            event = self._create()
            event.record()
        return event

    def give(self, event: Event) -> None:
        """Take back an event that has passed and that nobody holds."""
        self._free.append(event)


class DeviceClock:
    """Converts events to the host's clock.

    The base event passed no earlier than any event was recorded, less the time between the two. The largest
    of these bounds is the estimate. It is exact once the device was idle when an event was recorded. Events
    of different devices have no time between them: then the estimate begins anew with the new event.
    """

    def __init__(self) -> None:
        self._base: Event | None = None
        self._base_ns = 0

    def host_time(self, event: Event, recorded_ns: int, now_ns: int) -> int:
        """Return when `event` passed, on the host's clock.

        It was recorded at `recorded_ns` and passed by `now_ns`.
        """
        if self._base is None:
            self._base, self._base_ns = event, recorded_ns
        try:
            elapsed_ms = self._base.elapsed_time(event)
        except Exception:  # noqa: BLE001 - torch and CUDA name it in different ways
            self._base, self._base_ns, elapsed_ms = event, recorded_ns, 0.0
        elapsed_ns = round(elapsed_ms * 1e6)
        self._base_ns = min(max(self._base_ns, recorded_ns - elapsed_ns), now_ns - elapsed_ns)
        passed_ns = self._base_ns + elapsed_ns
        if elapsed_ms > REBASE_MS:
            self._base, self._base_ns = event, max(recorded_ns, passed_ns - REBASE_SLACK_NS)
        return passed_ns

    def is_base(self, event: Event) -> bool:
        """Return whether the clock holds this event, so that it must not be recorded again."""
        return event is self._base


class _Timed:
    """One phase that has been left and whose events may not have passed."""

    __slots__ = ("context", "end", "head", "left_ns", "start", "start_ns")

    def __init__(
        self, head: int, context: int, start: Event, end: Event, start_ns: int, left_ns: int
    ) -> None:
        self.head, self.context, self.start, self.end = head, context, start, end
        self.start_ns, self.left_ns = start_ns, left_ns


class DeviceTimer:
    """All device phases of a rank, in the order in which they were left."""

    def __init__(
        self,
        state: RankState,
        create: Callable[[], Event],
        *,
        lane: str,
        capturing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state = state
        self.capturing = capturing
        self.pool = EventPool(create)
        self._clock = DeviceClock()
        self._pending: deque[_Timed] = deque()
        self._lane = state.ring.intern(lane) << 48
        self._host_lane = (1 << 48) - 1

    def recorded(self) -> Event | None:
        """Return an event that was just recorded, None inside the capture of a CUDA graph."""
        return None if self.capturing() else self.pool.recorded()

    def left(self, head: int, start: Event, end: Event, start_ns: int, left_ns: int) -> None:
        """Take over a phase that has just been left, and harvest what has passed meanwhile."""
        self._pending.append(_Timed(head, self.state.context, start, end, start_ns, left_ns))
        self.harvest(2)
        if len(self._pending) > MAX_PENDING:
            timed = self._pending.popleft()  # its events are given up, because they may never pass
            self.state.ring.span(timed.head, timed.context, timed.start_ns, timed.left_ns)

    def harvest(self, most: int = MAX_PENDING) -> None:
        """Write spans of phases whose events have passed, oldest first. Stops at the first that has not.

        Asks nothing inside the capture of a CUDA graph, which a query would spoil.
        """
        pending = self._pending
        if pending and self.capturing():
            return
        while pending and most > 0 and pending[0].end.query() and pending[0].start.query():
            self._write(pending.popleft())
            most -= 1

    def _write(self, timed: _Timed) -> None:
        now = perf_counter_ns()
        start = self._clock.host_time(timed.start, timed.start_ns, now)
        end = start + max(0, round(timed.start.elapsed_time(timed.end) * 1e6))
        context = (timed.context & self._host_lane) | self._lane
        self.state.ring.span(timed.head, context, start, end)
        for event in (timed.start, timed.end):
            if not self._clock.is_base(event):
                self.pool.give(event)


class DevicePhase(Phase):
    """A phase that the device times. On the status page it is open from when the host enters it."""

    __slots__ = ("_capturing", "_events", "_timer")

    def __init__(
        self, state: RankState, name: int, category: int, timer: DeviceTimer, capturing: Callable[[], bool]
    ) -> None:
        super().__init__(state, name, category)
        self._head = span_head(name, category)
        self._timer = timer
        self._capturing = capturing
        self._events: list[Event | None] = []  # one for each entry not yet left

    def __enter__(self) -> None:
        super().__enter__()
        event = None
        try:
            if not self._capturing():  # an event with timing cannot be part of a CUDA graph
                event = self._timer.pool.recorded()
        except Exception:  # noqa: BLE001 - a device in trouble must fail in the script's own calls, not in ours
            self._state.fault()
        self._events.append(event)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        event = self._events.pop() if self._events else None
        if event is None:
            super().__exit__(kind, error, trace)
            return
        state, start, now = self._state, self._start, perf_counter_ns()
        try:
            head = self._head | self.leave()
            self.resume_outer()
            self._timer.left(head, event, self._timer.pool.recorded(), start, now)
            if state.pending:
                state.poll()
        except Exception:  # noqa: BLE001 - as above
            state.fault()


def device_timer(state: RankState) -> DeviceTimer | None:
    """Return a timer for the process's CUDA device, or None while the process has not touched one.

    Never initialises CUDA. A process that does not use its device is timed by the host's clock. So is one
    that works on another device than its thread's present one, because it never called `set_device`. An event
    would take some hundred megabytes of the present one, which other ranks may need, and time nothing.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    if not torch._C._cuda_hasPrimaryContext(torch.cuda.current_device()):
        return None
    return DeviceTimer(
        state,
        lambda: torch.cuda.Event(enable_timing=True),
        lane=f"cuda:{torch.cuda.current_device()}",
        capturing=torch.cuda.is_current_stream_capturing,
    )


class DeviceNumber:
    """A one-element CUDA tensor on its way to the host, copied to pinned memory behind the work before it."""

    __slots__ = ("_event", "_host")

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch

        # The host's side has the tensor's own type: a copy that also converts would wait for the device.
        # The script may have set another default device, whose memory cannot be pinned.
        self._host = torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(tensor.device))

    def ready(self) -> bool:
        """Return whether the copy has ended. Takes one event query."""
        return bool(self._event.query())

    def value(self) -> float:
        """Return the number. Only valid once `ready`."""
        return float(self._host)
