"""What a training script sees of Pulsetrain: phases, steps and the numbers of a step.

`init` returns the process's one `Handle`. Under `pulsetrain run` it writes into the ring that the node's
agent owns; without an agent every call does nothing. No call blocks, synchronises a device or raises into
training: what goes wrong inside is counted on the ring's status page.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from functools import cache
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from pulsetrain.collectors.layout import AXES, W_LAST, W_LAST_STEP, W_STEP_START
from pulsetrain.collectors.rank.phases import NO_SPAN, Phase, RankState, Span, ThreadPhase, category_number
from pulsetrain.collectors.rank.ring import RingWriter
from pulsetrain.collectors.rank.timers import DeviceNumber, DevicePhase, DeviceTimer, device_timer
from pulsetrain.records.schema import CATEGORIES

RING_FD = "PULSETRAIN_RING_FD"
LATE_STEPS = 16  # a step waits at most for so many later steps until its loss has arrived from the device


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
    """A number that is known at once."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def ready(self) -> bool:
        return True

    def value(self) -> float:
        return self._value


def _number(value: Any) -> Any:
    """`value` with ready() and value(); a tensor on a device is copied without waiting for it.

    Raises where it is no single number; of a DTensor only a replicated one is, without a collective.
    """
    if hasattr(value, "to_local"):
        if not all(placement.is_replicate() for placement in value.placements):
            raise ValueError("a DTensor that is not replicated has no value on this rank")
        value = value.to_local()
    if hasattr(value, "detach"):
        value = value.detach()
    return DeviceNumber(value) if getattr(value, "is_cuda", False) else _Number(float(value))


class Handle:
    """One training process's pulse. Get it from `init`."""

    def __init__(self, ring: RingWriter | None) -> None:
        self.state = RankState(ring) if ring is not None else None  # None: every call is a no-op
        self._phases: dict[str, Span] = {}
        self._main = get_ident()
        self._numbers: dict[str, Any] = {}
        self._pending: deque[_PendingStep] = deque()
        self._timer: DeviceTimer | None = None
        self._started = perf_counter_ns()
        self._clock_runs = False

    @property
    def active(self) -> bool:
        """Whether an agent listens."""
        return self.state is not None

    def phase(self, name: str, category: str | None = None) -> Span:
        """A context manager that times `name`; phases may nest, and may be entered from any thread.

        `category` is one of compute, communication, data, checkpoint, other; by default it follows from the
        name, else other. What the first use of a name says holds for all.
        """
        try:
            span = self._phases[name]
        except KeyError:
            span = self._new_phase(name, category)
        if get_ident() != self._main:
            return self._thread_phase(name, category)
        return span

    def step(self, tokens: int | None = None, flops: float | None = None) -> None:
        """Ends an optimizer step: `tokens` this rank processed in it, `flops` of the model it owed for it."""
        state = self.state
        if state is None:
            return
        try:
            self._end_step(state, tokens, flops)
        except Exception:  # noqa: BLE001 - the training loop must not see our faults
            state.fault()

    def log(self, loss: Any = None, grad_norm: Any = None) -> None:
        """Attaches numbers to the current step: floats or one-element tensors, which are never waited for."""
        state = self.state
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
        if self.state is not None:
            self.state.enter_step(step)
            self.state.words[W_LAST_STEP] = step - 1
            self._clock_runs = False
            self.start_clock()

    def _end_step(self, state: RankState, tokens: int | None, flops: float | None) -> None:
        end = perf_counter_ns()
        numbers, self._numbers = self._numbers, {}
        flops = float("nan") if flops is None else float(flops)
        self._pending.append(
            _PendingStep(state.step, self._started, end - self._started, int(tokens or 0), flops, numbers)
        )
        if state.processor is not None:
            state.processor.end_step(state.step, self._started, end - self._started)
        words = state.words
        words[W_LAST_STEP] = state.step
        state.enter_step(state.step + 1)
        words[W_STEP_START] = words[W_LAST] = self._started = end
        state.poll()
        if self._timer is not None:
            self._timer.harvest()
        else:
            self._look_for_device(state)
        self._flush(state)

    def _look_for_device(self, state: RankState) -> None:
        """Once the process uses a CUDA device, phases are timed there; the cached ones are made anew."""
        self._timer = device_timer(state)
        if self._timer is not None:
            self._phases = {}

    def _flush(self, state: RankState) -> None:
        """Writes the finished steps whose numbers are known; one that waited too long goes without them."""
        pending = self._pending
        while pending and (len(pending) > LATE_STEPS or pending[0].ready()):
            step = pending.popleft()
            known = {name: n.value() for name, n in step.numbers.items() if n.ready()}
            state.ring.step(
                step.step, step.start, step.duration, tokens=step.tokens, flops=step.flops, **known
            )

    def _new_phase(self, name: str, category: str | None) -> Span:
        state = self.state
        if state is None:
            return NO_SPAN
        try:
            span = self._timed_phase(state, state.ring.intern(name), category_number(name, category))
        except Exception:  # noqa: BLE001 - a wrong category is counted, not raised into training
            state.fault()
            return NO_SPAN
        self._phases[name] = span
        return span

    def _timed_phase(self, state: RankState, name: int, category: int) -> Span:
        """Work of the device is timed by the device; loading data and saving state are the host's."""
        if self._timer is None or CATEGORIES[category] in ("data", "checkpoint"):
            return Phase(state, name, category)
        import torch

        return DevicePhase(state, name, category, self._timer, torch.cuda.is_current_stream_capturing)

    def _thread_phase(self, name: str, category: str | None) -> Span:
        state = self.state
        if state is None:
            return NO_SPAN
        try:
            return ThreadPhase(state, state.ring.intern(name), category_number(name, category))
        except Exception:  # noqa: BLE001 - as above
            state.fault()
            return NO_SPAN

    def start_clock(self) -> None:
        """The first step begins now; later calls change nothing."""
        if self.state is not None and not self._clock_runs:
            self._clock_runs = True
            self._started = self.state.words[W_STEP_START] = perf_counter_ns()
            if self._timer is None:
                self._look_for_device(self.state)

    def place(self, coordinates: Mapping[str, int]) -> None:
        """Says where this rank stands, by axis; nothing given changes nothing."""
        if self.state is not None and coordinates:
            self.state.ring.set_topology([int(coordinates.get(axis, 0)) for axis in AXES])

    def fault(self) -> None:
        """Counts a fault of Pulsetrain's own in this process."""
        if self.state is not None:
            self.state.fault()

    def _mute(self) -> None:
        """Makes every call a no-op: in a forked child the ring belongs to the parent."""
        if self.state is not None:
            self.state.ring.leave_to_parent()
        self.state = None
        self._phases = {}
        self._main = get_ident()


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
    handle.start_clock()
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
