"""What a training script sees of Pulsetrain: phases, steps and the numbers of a step.

`init` returns the process's one `Handle`. Under `pulsetrain run` it writes into the ring that the node's
agent owns; without an agent every call does nothing. No call blocks, synchronises a device or raises into
training: what goes wrong inside is counted on the ring's status page.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from threading import current_thread, get_ident, local
from time import perf_counter_ns
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

from pulsetrain.collectors import ring as _ring
from pulsetrain.collectors.ring import (
    AXES,
    MAX_DEPTH,
    PACK_OPEN,
    PACK_PHASE,
    SLOTS_AT,
    STACK_AT,
    W_STACK,
    RingWriter,
)
from pulsetrain.stream.schema import CATEGORIES

RING_FD = "PULSETRAIN_RING_FD"
LATE_STEPS = 16  # a step waits at most for so many later steps until its loss has arrived from the device

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


class _NoSpan:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NO_SPAN = _NoSpan()


class _State:
    """What all phases of a process share: the ring, the open phases of the main thread, step and microbatch.

    `stack` holds, for each open phase, the parent it found and its start; `parent` is the innermost open
    phase as bits for a span's head, `context` step, microbatch and lane as a slot stores them.
    """

    __slots__ = ("context", "lane", "parent", "polls", "ring", "stack", "step", "words")

    def __init__(self, ring: RingWriter) -> None:
        self.ring = ring
        self.words = ring.words
        self.stack: list[tuple[int, int]] = []
        self.parent = 0
        self.lane = ring.intern("host")
        self.enter_step(0)
        self.polls: list[Callable[[], None]] = []

    def enter_step(self, step: int) -> None:
        """Spans that end from now on belong to this step, and to no microbatch."""
        self.step = step
        self.words[_ring.W_STEP] = step
        self.enter_microbatch(-1)

    def enter_microbatch(self, microbatch: int) -> None:
        """Spans that end from now on belong to this microbatch; -1: to none."""
        self.context = _ring.span_context(self.step, microbatch, self.lane)

    def fault(self) -> None:
        """Counts something that went wrong inside Pulsetrain."""
        self.words[_ring.W_ERRORS] += 1


class Phase:
    """A named phase of the main thread on the host clock. One object serves every entry, nested ones too."""

    __slots__ = ("_as_parent", "_head", "_memory", "_state", "_words")

    def __init__(self, state: _State, name: int, category: int) -> None:
        self._state = state
        self._words = state.words
        self._memory = state.ring.memory
        self._head = _ring.span_head(name, category, kind=_ring.PHASE)
        self._as_parent = name << 32

    def __enter__(self) -> None:
        state = self._state
        stack = state.stack
        start = perf_counter_ns()
        depth = len(stack)
        stack.append((state.parent, start))
        state.parent = self._as_parent
        if depth < MAX_DEPTH:
            PACK_OPEN(self._memory, STACK_AT + 16 * depth, self._head, start)

    def __exit__(self, *_: object) -> None:
        end = perf_counter_ns()
        state = self._state
        ring = state.ring
        stack = state.stack
        try:
            parent, start = stack.pop()
            state.parent = parent
            depth = len(stack)
            if depth < MAX_DEPTH:
                self._words[W_STACK + depth + depth] = 0
            if ring.next < ring.limit or ring.room():
                number = ring.claim()
                ring.next = following = number + 1
                at = SLOTS_AT + 64 * (number & ring.mask)
                PACK_PHASE(self._memory, at, self._head | parent, state.context, start, end, following)
        except (IndexError, ValueError):  # left out of order, as a generator can: nothing to pair it with
            state.fault()


class _ThreadPhase:
    """A phase of another thread than the main one: recorded when it ends, in a lane of its own."""

    __slots__ = ("_head", "_lane", "_start", "_state")

    def __init__(self, state: _State, name: int, category: int) -> None:
        self._state = state
        self._head = _ring.span_head(name, category, kind=_ring.PHASE)
        self._lane = state.ring.intern(current_thread().name)
        self._start = 0

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        state = self._state
        context = _ring.span_context(state.step, -1, self._lane)
        state.ring.span(self._head, context, self._start, perf_counter_ns())


class _PendingStep:
    """A finished step whose numbers may still be on their way from the device."""

    __slots__ = ("duration", "flops", "numbers", "start", "step", "tokens")

    def __init__(
        self, step: int, start: int, duration: int, tokens: int, flops: float, numbers: dict[str, Any]
    ) -> None:
        self.step, self.start, self.duration = step, start, duration
        self.tokens, self.flops, self.numbers = tokens, flops, numbers

    def ready(self) -> bool:
        return all(number.ready() for number in self.numbers.values())


class _Number:
    """A Python number, or a tensor on the host: known at once."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = float(value)

    def ready(self) -> bool:
        return True

    def value(self) -> float:
        return self._value


def _number(value: Any) -> Any:
    """`value` with ready() and value(); a tensor on a device is copied without waiting for it."""
    if getattr(value, "is_cuda", False):
        from pulsetrain.collectors.timers import DeviceNumber

        return DeviceNumber(value)
    return _Number(value)


class Handle:
    """One training process's pulse. Get it from `init`."""

    def __init__(self, ring: RingWriter | None) -> None:
        self._state = _State(ring) if ring is not None else None
        self._phases: dict[str, Span] = {}
        self._main = get_ident()
        self._threads = local()
        self._numbers: dict[str, Any] = {}
        self._pending: deque[_PendingStep] = deque()
        self._started = perf_counter_ns()

    @property
    def active(self) -> bool:
        """Whether an agent listens."""
        return self._state is not None

    def phase(self, name: str, category: str | None = None) -> Span:
        """A context manager that times `name`; phases may nest, and may be entered from any thread.

        `category` is one of compute, communication, data, checkpoint, other; by default it follows from the
        name, else other. What the first use of a name says holds for all.
        """
        span = self._phases.get(name)
        if span is None:
            span = self._new_phase(name, category)
        if get_ident() != self._main:
            return self._thread_phase(name, category)
        return span

    def step(self, tokens: int | None = None, flops: float | None = None) -> None:
        """Ends an optimizer step: `tokens` this rank processed in it, `flops` of the model it owed for it."""
        state = self._state
        if state is None:
            return
        try:
            self._end_step(state, tokens, flops)
        except Exception:  # noqa: BLE001 - the training loop must not see our faults
            state.fault()

    def log(self, loss: Any = None, grad_norm: Any = None) -> None:
        """Attaches numbers to the current step: floats or one-element tensors, which are never waited for."""
        state = self._state
        if state is None:
            return
        try:
            if loss is not None:
                self._numbers["loss"] = _number(loss)
            if grad_norm is not None:
                self._numbers["grad_norm"] = _number(grad_norm)
        except Exception:  # noqa: BLE001 - a value that is no number is counted, not raised into training
            state.fault()

    def resume(self, step: int) -> None:
        """The next step to run is `step`: call it after a restore. Without a call steps count from 0."""
        if self._state is not None:
            self._state.enter_step(step)
            self._state.words[_ring.W_LAST_STEP] = step - 1
            self._started = perf_counter_ns()

    def _end_step(self, state: _State, tokens: int | None, flops: float | None) -> None:
        end = perf_counter_ns()
        numbers, self._numbers = self._numbers, {}
        flops = float("nan") if flops is None else float(flops)
        self._pending.append(
            _PendingStep(state.step, self._started, end - self._started, int(tokens or 0), flops, numbers)
        )
        words = state.words
        words[_ring.W_LAST_STEP] = state.step
        state.enter_step(state.step + 1)
        words[_ring.W_STEP_START] = words[_ring.W_LAST] = self._started = end
        for poll in state.polls:
            poll()
        self._flush(state)

    def _flush(self, state: _State) -> None:
        """Writes the finished steps whose numbers are known; one that waited too long goes without them."""
        pending = self._pending
        while pending and (len(pending) > LATE_STEPS or pending[0].ready()):
            step = pending.popleft()
            known = {name: n.value() for name, n in step.numbers.items() if n.ready()}
            state.ring.step(
                step.step, step.start, step.duration, tokens=step.tokens, flops=step.flops, **known
            )

    def _new_phase(self, name: str, category: str | None) -> Span:
        state = self._state
        if state is None:
            return _NO_SPAN
        try:
            span: Span = Phase(state, state.ring.intern(str(name)), _category(str(name), category))
        except Exception:  # noqa: BLE001 - a wrong category is counted, not raised into training
            state.fault()
            return _NO_SPAN
        self._phases[name] = span
        return span

    def _thread_phase(self, name: str, category: str | None) -> Span:
        state = self._state
        if state is None:
            return _NO_SPAN
        try:
            return _ThreadPhase(state, state.ring.intern(str(name)), _category(str(name), category))
        except Exception:  # noqa: BLE001 - as above
            state.fault()
            return _NO_SPAN

    def place(self, coordinates: Mapping[str, int]) -> None:
        """Says where this rank stands, by axis; nothing given changes nothing."""
        if self._state is not None and coordinates:
            self._state.ring.set_topology([int(coordinates.get(axis, 0)) for axis in AXES])

    def fault(self) -> None:
        """Counts a fault of Pulsetrain's own in this process."""
        if self._state is not None:
            self._state.fault()

    def _mute(self) -> None:
        """Makes every call a no-op: in a forked child the ring belongs to the parent."""
        self._state = None
        self._phases = {}
        self._main = get_ident()


def _category(name: str, category: str | None) -> int:
    return CATEGORIES.index(category if category is not None else DEFAULT_CATEGORY.get(name, "other"))


@cache
def process_handle() -> Handle:
    """The one handle of this process; opens the ring that the agent left in the environment, if any."""
    handle = Handle(_open_ring(os.environ))
    if handle.active:
        os.register_at_fork(after_in_child=handle._mute)
        restored = os.environ.get("PULSETRAIN_RESTORE_STEP", "-1")
        if restored.isdecimal():
            handle.resume(int(restored) + 1)
    return handle


def _open_ring(environ: Mapping[str, str]) -> RingWriter | None:
    try:
        return RingWriter(int(environ[RING_FD]))
    except Exception:  # noqa: BLE001 - a missing or foreign descriptor means no agent, and training goes on
        return None


def init(
    mesh: Any = None,
    *,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
) -> Handle:
    """The process's handle; the same one at each call.

    `mesh` is a `DeviceMesh` whose dimensions are named tp, pp, dp, cp, ep (others are ignored); `tp` and the
    rest are this rank's own coordinates and win over the mesh. An axis that nobody names has coordinate 0.
    """
    handle = process_handle()
    given = dict(zip(AXES, (tp, pp, dp, cp, ep), strict=True))
    try:
        handle.place({**_coordinates(mesh), **{k: v for k, v in given.items() if v is not None}})
    except Exception:  # noqa: BLE001 - a mesh of another make must not stop training
        handle.fault()
    return handle


def _coordinates(mesh: Any) -> dict[str, int]:
    """This rank's coordinate in each named dimension of the mesh that is an axis of ours."""
    if mesh is None:
        return {}
    return {name: mesh.get_local_rank(name) for name in mesh.mesh_dim_names or () if name in AXES}
