"""The main thread's inferred phases, one after the other: data, forward, backward, optimizer and so on.

Inferred phases never nest in each other, so no time counts twice. The phases that the script itself marks
may lie around them or inside them. A phase that the script marks wins: the inferred one of its name is off.
"""

from __future__ import annotations

from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING

from pulsetrain.collectors.layout import PACK_OPEN, PHASE, STACK_AT, STACK_END, span_head
from pulsetrain.collectors.rank.phases import NO_SPAN, SharedByCopies, Span, category_number
from pulsetrain.records.schema import CATEGORIES

if TYPE_CHECKING:
    from pulsetrain.collectors.rank.handle import Handle
    from pulsetrain.collectors.rank.phases import RankState
    from pulsetrain.collectors.rank.timers import Event

EVALUATION = "evaluation"
ON_HOST = ("data", "checkpoint")
"""Categories of work that the host does. Any other is timed by the device once there is one."""


class _Segment:
    """One open segment.

    `at`: its entry on the status page. `outer`: the parent's bits of what was open when it began.
    """

    __slots__ = ("at", "blocked", "event", "firm", "head", "name", "outer", "start")

    def __init__(self, name: str, head: int, at: int, outer: int, *, firm: bool) -> None:
        self.name, self.head, self.at, self.outer, self.firm = name, head, at, outer, firm
        self.event: Event | None = None
        self.blocked = 0
        self.start = perf_counter_ns()


class _Marked(SharedByCopies):
    """A phase of the script, in whose place no segment may be open."""

    __slots__ = ("_name", "_segments", "_span")

    def __init__(self, segments: Segments, name: str, span: Span) -> None:
        self._segments, self._name, self._span = segments, name, span

    def __enter__(self) -> None:
        self._segments.enter_marked(self._name)
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._span.__exit__(kind, error, trace)
        self._segments.leave_marked(self._name)


class _Interruption:
    """Times `name` between two pieces of the segment that was open."""

    __slots__ = ("_before", "_mine", "_name", "_segments")

    def __init__(self, segments: Segments, name: str) -> None:
        self._segments, self._name = segments, name

    def __enter__(self) -> None:
        self._before = self._segments.pause(self._name)
        self._mine = self._segments.open

    def __exit__(self, *_: object) -> None:
        if self._segments.open is self._mine:
            self._segments.resume(self._before)


class Segments:
    """A linear state machine: at most one segment is open. Only the main thread moves it.

    Calls in another thread and in a forked child do nothing. No call raises: a fault is counted.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.open: _Segment | None = None  # only this module looks inside it
        self._off: set[str] = set()
        self._heads: dict[str, int] = {}
        self._marked = 0  # phases of the script that are open and stand where a segment would
        self._wanted = ("", True)  # what to begin once none of them is open
        self._unshown = ""  # what would be open, if the script did not mark it
        self._marked_evaluations = 0
        self.recorded = False  # whether a segment has ever been recorded

    @property
    def current(self) -> str:
        """The name of the open segment, "" for none."""
        return self.open.name if self.open is not None else ""

    @property
    def marks_evaluation(self) -> bool:
        """Whether a phase "evaluation" of the script is open."""
        return self._marked_evaluations > 0

    @property
    def evaluates(self) -> bool:
        """Whether the script evaluates, by its own phase or by what would be inferred without one."""
        inferred = self._wanted[0] if self._marked else self._unshown or self.current
        return self.marks_evaluation or inferred == EVALUATION

    def switch(self, name: str) -> None:
        """End the open segment and begin `name`. "", or a name that is off: begin none."""
        self._change(name, firm=True)

    def expect(self, name: str) -> None:
        """End the open segment and begin one that is shown as `name`, but recorded only once confirmed."""
        self._change(name, firm=False)

    def confirm(self, name: str) -> None:
        """The segment that was expected is `name`: record it as this from its beginning.

        Where none was expected, or the script marks `name`, nothing changes.
        """
        segment, state = self.open, self._handle.state
        if not name or segment is None or segment.firm or state is None or not self._handle.on_main_thread:
            return
        if name in self._off:
            return
        segment.firm = True
        if name != segment.name:
            segment.name, segment.head = name, self._head(state, name)
            if segment.at < STACK_END and state.top > segment.at:
                state.words[segment.at >> 3] = segment.head

    def discard(self) -> None:
        """Forget the open segment. Nothing is recorded of it."""
        if self.open is not None:
            self.open.firm = False
        self._change("", firm=True)

    def pause(self, name: str) -> tuple[str, bool]:
        """Switch to `name`. Returns what `resume` needs to begin again what was open."""
        before = (self.open.name, self.open.firm) if self.open is not None else ("", True)
        self.switch(name)
        return before

    def resume(self, before: tuple[str, bool]) -> None:
        """Begin again what `pause` ended."""
        self._change(before[0], firm=before[1])

    def turn_off(self, name: str) -> None:
        """Never infer this phase again: the script marks it. One that is open is forgotten."""
        self._off.add(name)
        if self.current == name:
            self.discard()

    def is_off(self, name: str) -> bool:
        """Return whether the script marks this phase itself."""
        return name in self._off

    def marked(self, name: str, span: Span) -> Span:
        """Return the script's own phase so that no segment is open inside it.

        A segment that would begin inside it begins when it ends. Forward begins behind the script's data.
        """
        return _Marked(self, name, span)

    def enter_marked(self, name: str) -> None:
        """End the open segment: a phase of the script stands for it from now on."""
        if self._handle.on_main_thread:
            self.confirm({"backward": "forward", "optimizer": "optimizer"}.get(name, ""))
            self._change("", firm=True)
            self._marked += 1
            self._marked_evaluations += name == EVALUATION
            self._wanted = ("forward", False) if name == "data" else ("", True)

    def leave_marked(self, name: str) -> None:
        """Begin what was asked for meanwhile."""
        if self._handle.on_main_thread and self._marked:
            self._marked -= 1
            self._marked_evaluations -= name == EVALUATION
            if not self._marked:
                self.resume(self._wanted)

    def begin_again(self) -> None:
        """The attempt is over, in the middle of whatever it did. No phase of the script is open any more."""
        self._marked = self._marked_evaluations = 0
        self.switch("")

    def interrupt(self, name: str) -> Span:
        """Return a context manager that times `name` and then begins again what it interrupted.

        In another thread it is a phase of that thread.
        """
        handle = self._handle
        if handle.state is None:
            return NO_SPAN
        if not handle.on_main_thread:
            return handle.hooked_phase(name)
        return _Interruption(self, name)

    def _change(self, name: str, *, firm: bool) -> None:
        handle = self._handle
        state = handle.state
        if state is None or not handle.on_main_thread:
            return
        if self._marked:
            self._wanted = (name, firm)
            return
        self._unshown = name if name in self._off else ""
        try:
            last, self.open = self.open, None
            if last is not None:
                self._end(state, last)
            if name and name not in self._off:
                self.open = self._begin(state, name, firm=firm)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            state.fault()

    def _begin(self, state: RankState, name: str, *, firm: bool) -> _Segment:
        at = state.top
        segment = _Segment(name, self._head(state, name), at, state.parent, firm=firm)
        segment.blocked = state.blocked
        state.parent = (segment.head >> 16 & 0xFFFF) << 32
        state.top = at + 16
        if at < STACK_END:
            PACK_OPEN(state.ring.memory, at, segment.head, segment.start)
        timer = self._handle.timer
        if timer is not None and CATEGORIES[segment.head >> 8 & 0xFF] not in ON_HOST:
            segment.event = timer.recorded()
        return segment

    def _head(self, state: RankState, name: str) -> int:
        head = self._heads.get(name)
        if head is None:
            head = span_head(state.ring.intern(name), category_number(name, None), kind=PHASE)
            self._heads[name] = head
        return head

    def _end(self, state: RankState, segment: _Segment) -> None:
        end = perf_counter_ns()
        self._remove(state, segment)
        if not segment.firm:
            return
        self.recorded = True
        head = segment.head | segment.outer
        timer = self._handle.timer
        passed = timer.recorded() if timer is not None and segment.event is not None else None
        if timer is not None and segment.event is not None and passed is not None:
            timer.left(head, segment.event, passed, segment.start, end)
        else:
            blocked = state.blocked - segment.blocked
            state.ring.span(head, state.context, segment.start, end, blocked=blocked)
        if state.pending:
            state.poll()

    def _remove(self, state: RankState, segment: _Segment) -> None:
        """Take the segment off the status page. Phases of the script may have begun or ended since."""
        at, words = segment.at, state.words
        if state.top == at + 16:  # it is the innermost, as nearly always
            state.parent = segment.outer
        elif state.top > at:  # phases of the script lie above it: close the gap
            for word in range(at >> 3, (min(state.top, STACK_END) >> 3) - 2):
                words[word] = words[word + 2]
        # Else a phase around it has ended, and took our entry for its own. Its own is still there.
        state.top = top = max(STACK_AT, state.top - 16)
        if top < STACK_END:
            words[top >> 3] = 0
