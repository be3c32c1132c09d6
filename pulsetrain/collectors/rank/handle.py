"""What a training script sees of Pulsetrain: phases, steps and the numbers of a step.

`init` returns the process's one `Handle`. Under `pulsetrain run` it writes into the ring that the node's
agent owns. Without an agent every call does nothing. No call blocks, synchronises a device or raises into
training. What goes wrong inside is counted on the ring's status page.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING

from pulsetrain.collectors.layout import AXES, W_HOLD, W_LAST, W_LAST_STEP, W_PROFILE, W_RESUMED, W_STEP_START
from pulsetrain.collectors.rank.description import EXPLICIT, Description
from pulsetrain.collectors.rank.hold import HoldPoint
from pulsetrain.collectors.rank.inference import Inference
from pulsetrain.collectors.rank.numbers import Number, PendingStep, number
from pulsetrain.collectors.rank.owner import is_of_another
from pulsetrain.collectors.rank.phases import (
    DEFAULT_CATEGORY,
    NO_SPAN,
    CommunicationPhase,
    Phase,
    RankState,
    SharedByCopies,
    Span,
    ThreadPhase,
    category_number,
)
from pulsetrain.collectors.rank.profile import StepProfiler
from pulsetrain.collectors.rank.ring import RingWriter
from pulsetrain.collectors.rank.timers import DevicePhase, DeviceTimer, device_timer
from pulsetrain.records.schema import CATEGORIES

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

RING_FD = "PULSETRAIN_RING_FD"
MAX_PHASES = 1024  # that are kept to be handed out again. A script may make a new name for each batch
LATE_STEPS = 16  # a step waits for its loss from the device for at most so many later steps


class Handle(SharedByCopies):
    """Phases, steps and numbers of one training process. Get it from `init`."""

    def __init__(self, ring: RingWriter | None) -> None:
        self.state = RankState(ring) if ring is not None else None  # None: every call is a no-op
        self._phases: dict[str, Span] = {}
        self._main = get_ident()
        self._numbers: dict[str, Number] = {}
        self._pending: deque[PendingStep] = deque()
        self._first: Number | None = None  # the number of the first step, while it has not arrived
        self._timer: DeviceTimer | None = None
        self.profiler = StepProfiler()
        self.hold = HoldPoint()
        self._started = perf_counter_ns()
        self._clock_runs = False
        self._coordinates_given = False
        self._given: set[str] = set()
        self.description = Description(ring) if ring is not None else None
        self.inference: Inference | None = None
        self.started_by_rank = False  # whether this process is a program that a rank has started
        self.script_calls = False  # whether the script has called `init`
        self.resumed = False  # whether somebody has said which step is the next
        self.behind_file = False  # whether a checkpoint of a known step was read
        self.switched: Span | None = None  # the phase that a Trainer's callback has begun and not ended
        self.before_restart: list[Callable[[], None]] = []  # end what works for an attempt, in this process

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Where a pickled handle is read, it is the one of that process."""
        return process_handle, ()

    @property
    def active(self) -> bool:
        """Whether an agent listens."""
        return self.state is not None

    @property
    def on_main_thread(self) -> bool:
        """Whether the caller runs on the thread that made the handle."""
        return get_ident() == self._main

    @property
    def timer(self) -> DeviceTimer | None:
        """What times the device, None while the process uses none."""
        return self._timer

    def phase(self, name: str, category: str | None = None) -> Span:
        """Return a context manager that times `name`. Phases may nest, and any thread may enter them.

        `category` is one of compute, communication, data, checkpoint, other. By default it follows from the
        name, else it is other. The first use of a name decides for all.
        """
        if get_ident() != self._main:
            return self._new_phase(name, category, thread=True)
        try:
            return self._phases[name]
        except KeyError:
            return self._keep(name, self._marked_phase(name, category, by_script=True))

    def hooked_phase(self, name: str) -> Span:
        """As `phase`, for a hook of ours that stands for a phase that would be inferred otherwise."""
        if get_ident() != self._main:
            return self._new_phase(name, None, thread=True)
        try:
            return self._phases[name]
        except KeyError:
            return self._keep(name, self._marked_phase(name, None, by_script=False))

    def _keep(self, name: str, span: Span) -> Span:
        if len(self._phases) >= MAX_PHASES:
            self._phases = {}  # those in use are made anew
        self._phases[name] = span
        return span

    def step(self, tokens: int | None = None, flops: float | None = None) -> None:
        """End an optimizer step.

        `tokens`: processed by this rank in it. `flops`: model FLOPs that it owed for it.
        """
        state = self.state
        if state is None:
            return
        try:
            self._note(steps=True, tokens=tokens is not None, flops=flops is not None)
            self.end_step(perf_counter_ns(), tokens, flops)
        except Exception:  # noqa: BLE001 - the training loop must not see our faults
            state.fault()
        self.raise_of_hold()

    def log(
        self, loss: float | torch.Tensor | None = None, grad_norm: float | torch.Tensor | None = None
    ) -> None:
        """Attach numbers to the current step: floats or one-element tensors, which are never waited for."""
        state = self.state
        if state is None:
            return
        try:
            if loss is not None:
                self._note(loss=True)
                self._numbers["loss"] = number(loss)
            if grad_norm is not None:
                self._numbers["grad_norm"] = number(grad_norm)
        except Exception:  # noqa: BLE001 - a value that is no number is counted, not raised into training
            state.fault()

    def resume(self, step: int) -> None:
        """Say that the next step to run is `step`.

        Call it after a restore. Without a call steps count from 0.
        """
        if self.state is not None:
            self.count_from(step)
            self._first = None
            self.resumed = True
            self._clock_runs = False
            self.start_clock()

    def begin_again(self) -> None:
        """A new attempt begins in this process. Nothing is known of it yet."""
        self._pending.clear()
        self._first = None
        self._numbers, self._phases, self.switched = {}, {}, None
        self._coordinates_given = self._clock_runs = self.resumed = self.behind_file = False
        self.profiler.answered = 0

    def count_from(self, step: int) -> None:
        """The present step is `step`. Its clock runs on."""
        if self.state is not None:
            self.state.enter_step(step)
            self.state.words[W_LAST_STEP] = self.state.words[W_RESUMED] = step - 1

    def continue_behind(self, step: int) -> None:
        """The script has read its checkpoint of `step`. No count of an optimizer says better what is next."""
        if not self.resumed:
            self._first, self.behind_file = None, True
            self.count_from(step + 1)

    def count_from_late(self, first: Number) -> None:
        """`first` is the number of the first step, on its way from a device.

        Steps are not written before it has arrived. After 16 later steps it is given up.
        """
        self._first = first

    def _number_late(self, state: RankState) -> None:
        """Number the steps that have waited for the number of the first one, if it is there."""
        if self._first is None or not self._first.ready():
            return
        first, self._first = int(self._first.value()), None
        if first > 0:
            for step in self._pending:
                step.step += first
            self.count_from(state.step + first)
            state.words[W_RESUMED] = first - 1

    def _note(self, **kinds: bool) -> None:
        """Note what the script gives itself. The inferred numbers of these kinds are not used any more."""
        given = {kind for kind, is_given in kinds.items() if is_given}
        if given <= self._given or self.description is None:
            return
        self._given |= given
        for kind in given:
            self.description.set(kind, EXPLICIT)
            if self.inference is not None:
                self.inference.script_gives(kind)

    def end_step(self, end: int, tokens: int | None = None, flops: float | None = None) -> None:
        """End a step at `end` on the ring's clock, for `step` and for hooks. What is missing is inferred."""
        state = self.state
        if state is None:
            return
        self._number_late(state)
        if self.inference is not None:
            inferred = self.inference.take_numbers()
            tokens = inferred.tokens if tokens is None else tokens
            flops = inferred.flops if flops is None else flops
            self._numbers = {**inferred.numbers, **self._numbers}
        numbers, self._numbers = self._numbers, {}
        flops = float("nan") if flops is None else float(flops)
        self._pending.append(
            PendingStep(state.step, self._started, end - self._started, int(tokens or 0), flops, numbers)
        )
        if state.processor is not None:
            state.processor.end_step(state.step, self._started, end - self._started)
        words = state.words
        words[W_LAST_STEP] = state.step
        state.enter_step(state.step + 1)
        words[W_STEP_START] = words[W_LAST] = self._started = end
        state.settle()
        if self._timer is not None:
            self._timer.harvest()
        else:
            self._look_for_device(state)
        self._flush(state)
        if words[W_PROFILE] != self.profiler.answered:
            self.profiler.at_step(state)
        if words[W_HOLD]:
            self.after_hold(self.hold.at_step(state))

    def after_hold(self, stood_ns: int) -> None:
        """The rank stood still between two steps. That belongs to neither of them."""
        if stood_ns and self.state is not None:
            self._started += stood_ns
            self.state.words[W_STEP_START] = self._started
            self.state.words[W_LAST] = perf_counter_ns()

    def raise_of_hold(self) -> None:
        """Raise what a signal handler of the script has raised while the rank stood still."""
        error, self.hold.raised = self.hold.raised, None
        if error is not None:
            raise error

    def hold_at_backward(self) -> None:
        """Stand still before a backward pass where the agent asks for it."""
        if self.state is not None and self.state.words[W_HOLD]:
            self.after_hold(self.hold.at_backward(self.state))

    def _look_for_device(self, state: RankState) -> None:
        """Once the process uses a CUDA device, time phases there. The cached ones are made anew."""
        self._timer = device_timer(state)
        if self._timer is not None:
            self._phases = {}

    def _flush(self, state: RankState) -> None:
        """Write the finished steps whose numbers are known. One that waited too long goes without them."""
        pending = self._pending
        if self._first is not None:
            if len(pending) <= LATE_STEPS:
                return
            self._first = None
        while pending and (len(pending) > LATE_STEPS or pending[0].ready()):
            step = pending.popleft()
            state.ring.step(
                step.step, step.start, step.duration, tokens=step.tokens, flops=step.flops, **step.known()
            )

    def _marked_phase(self, name: str, category: str | None, *, by_script: bool) -> Span:
        """Return a new phase. Where it stands for an inferred one, that is off from now on."""
        span = self._new_phase(name, category)
        if self.inference is None or self.description is None:
            return span
        if by_script and name in DEFAULT_CATEGORY:
            self.description.set("phases", EXPLICIT)
        return self.inference.stand_for(name, span)

    def _new_phase(self, name: str, category: str | None, *, thread: bool = False) -> Span:
        state = self.state
        if state is None:
            return NO_SPAN
        try:
            kind = category_number(name, category)
            index = state.ring.intern(name, by_script=name not in DEFAULT_CATEGORY)
            return ThreadPhase(state, index, kind) if thread else self._timed_phase(state, index, kind)
        except Exception:  # noqa: BLE001 - a wrong category is counted, not raised into training
            state.fault()
            return NO_SPAN

    def _timed_phase(self, state: RankState, name: int, category: int) -> Span:
        """Time work of the device by the device. Loading data and saving state are the host's."""
        if self._timer is None or CATEGORIES[category] in ("data", "checkpoint"):
            communicates = CATEGORIES[category] == "communication"
            return (CommunicationPhase if communicates else Phase)(state, name, category)
        import torch

        return DevicePhase(state, name, category, self._timer, torch.cuda.is_current_stream_capturing)

    def start_clock(self) -> None:
        """Begin the first step now. Later calls change nothing."""
        if self.state is not None and not self._clock_runs:
            self._clock_runs = True
            self._started = self.state.words[W_STEP_START] = perf_counter_ns()
            if self.state.processor is not None:
                self.state.processor.begin_steps(self._started)
            if self._timer is None:
                self._look_for_device(self.state)

    def set_coordinates(self, coordinates: Mapping[str, int]) -> None:
        """Set this rank's coordinates by axis. Nothing given changes nothing."""
        if self.state is not None and coordinates:
            self._coordinates_given = True
            self._show_coordinates(self.state, coordinates)

    def infer_coordinates(self, coordinates: Mapping[str, int]) -> bool:
        """Set coordinates that nobody gave. Returns False, and changes nothing, once the script gave some."""
        if self.state is None or self._coordinates_given:
            return False
        self._show_coordinates(self.state, coordinates)
        return True

    def _show_coordinates(self, state: RankState, coordinates: Mapping[str, int]) -> None:
        state.ring.set_topology([int(coordinates.get(axis, 0)) for axis in AXES])

    def fault(self) -> None:
        """Count a fault of Pulsetrain itself in this process."""
        if self.state is not None:
            self.state.fault()

    def _mute(self) -> None:
        """Make every call a no-op. In a forked child the ring belongs to the parent."""
        if self.state is not None:
            self.state.ring.leave_to_parent()
        self.state = None
        self._phases = {}
        self._main = get_ident()


@cache
def process_handle() -> Handle:
    """Return the one handle of this process.

    Opens the ring that the agent left in the environment, if any. A program that a rank has started may
    inherit that: its handle does nothing.
    """
    started_by_rank = _is_ring_of_another(os.environ)
    handle = Handle(None if started_by_rank else _open_ring(os.environ))
    handle.started_by_rank = started_by_rank
    if handle.active:
        os.register_at_fork(after_in_child=handle._mute)
        restored = os.environ.get("PULSETRAIN_RESTORE_STEP", "-1")
        if restored.isdecimal():
            handle.resume(int(restored) + 1)
    return handle


def _is_ring_of_another(environ: Mapping[str, str]) -> bool:
    fd = environ.get(RING_FD, "")
    return fd.isdecimal() and is_of_another(int(fd))


def _open_ring(environ: Mapping[str, str]) -> RingWriter | None:
    try:
        return RingWriter(int(environ[RING_FD]))
    except Exception:  # noqa: BLE001 - a missing or foreign descriptor means no agent, and training goes on
        return None


def init(
    mesh: DeviceMesh | None = None,
    *,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
) -> Handle:
    """Return the process's handle, the same one at each call.

    `mesh` is a `DeviceMesh` whose dimensions are named tp, pp, dp, cp, ep. Others are ignored. `tp` and the
    rest are this rank's own coordinates and win over the mesh. An axis that nobody names has coordinate 0.
    """
    handle = process_handle()
    handle.script_calls = True
    handle.start_clock()
    given = dict(zip(AXES, (tp, pp, dp, cp, ep), strict=True))
    try:
        handle.set_coordinates({**_coordinates(mesh), **{k: v for k, v in given.items() if v is not None}})
    except Exception:  # noqa: BLE001 - a mesh of another make must not stop training
        handle.fault()
    return handle


def _coordinates(mesh: DeviceMesh | None) -> dict[str, int]:
    """Return this rank's coordinate in each dimension of the mesh that is named like an axis."""
    if mesh is None:
        return {}
    return {name: mesh.get_local_rank(name) for name in mesh.mesh_dim_names or () if name in AXES}
