"""How long each part of a simulated step takes: a pipeline of stages, synchronised by collectives. Pure.

Arrays are [pp, dp, tp], with one more axis where a value differs by microbatch. Times are seconds. The
schedule is GPipe's: all forwards, then all backwards. In a tensor-parallel group, every collective waits for
the slowest rank. Across replicas, ranks wait once, in the gradient all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.simulate.spec import FleetSpec

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step. Starts are seconds since the step began."""

    forward_start: Array  # pp dp tp mb
    forward: Array
    forward_own: Array  # without waiting for tensor-parallel peers
    backward_start: Array
    backward: Array
    backward_own: Array
    forward_wait: Array  # in recv before each forward
    backward_wait: Array
    data: Array  # pp dp tp
    gc: Array
    reduce_start: Array
    reduce: Array
    norm: Array  # the all-reduce over all ranks, which begins where `reduce` ends
    optimizer: Array
    checkpoint: float
    length: float


def shape(spec: FleetSpec) -> tuple[int, int, int]:
    """(pp, dp, tp): rank = (pp_coordinate * dp + dp_coordinate) * tp + tp_coordinate."""
    return (spec.pp, spec.dp, spec.tp)


def simulate_step(spec: FleetSpec, step: int) -> StepTimes:
    """The times of one step. They depend on spec and step alone, in whatever order steps are simulated."""
    rng = np.random.default_rng((spec.seed, step))
    slow = _slowness(spec, step)
    own_forward, own_backward = _compute(spec, step, slow, rng)
    data, gc = _stalls(spec, step)
    own_forward[..., 0] += gc
    tp_s = spec.tp_s if spec.tp > 1 else 0.0
    forward = np.broadcast_to(own_forward.max(axis=2, keepdims=True) + tp_s, own_forward.shape)
    backward = np.broadcast_to(own_backward.max(axis=2, keepdims=True) + 2 * tp_s, own_backward.shape)
    schedule = _pipeline(spec, data.max(axis=2), forward[:, :, 0], backward[:, :, 0])
    reduce_start = schedule.backward_start[..., -1] + backward[:, :, 0, -1]
    reduce_end = reduce_start.max(axis=1, keepdims=True)[..., None] + reduce_seconds(spec, step)
    begins = np.broadcast_to(reduce_start[..., None], shape(spec))
    reduced = np.broadcast_to(reduce_end, shape(spec))
    norm = float(reduced.max()) + spec.norm_s - reduced if spec.norm_s > 0 else np.zeros(shape(spec))
    optimizer = spec.optimizer_s * slow * rng.normal(1.0, spec.noise / 2, shape(spec)).clip(0.5)
    saves = spec.checkpoint_every > 0 and step % spec.checkpoint_every == spec.checkpoint_every - 1
    checkpoint = 0.5 * spec.forward_s * spec.microbatches if saves else 0.0
    return StepTimes(
        forward_start=_for_each_rank(schedule.forward_start, spec),
        forward=forward,
        forward_own=own_forward,
        backward_start=_for_each_rank(schedule.backward_start, spec),
        backward=backward,
        backward_own=own_backward,
        forward_wait=_for_each_rank(schedule.forward_wait, spec),
        backward_wait=_for_each_rank(schedule.backward_wait, spec),
        data=data,
        gc=gc,
        reduce_start=begins,
        reduce=reduce_end - begins,
        norm=norm,
        optimizer=optimizer,
        checkpoint=checkpoint,
        length=float((reduced + norm + optimizer).max()) + checkpoint,
    )


def _for_each_rank(values: Array, spec: FleetSpec) -> Array:
    """Values [pp, dp, mb] of tensor-parallel groups, for each of their ranks."""
    pp, dp, microbatches = values.shape
    return np.broadcast_to(values[:, :, None, :], (pp, dp, spec.tp, microbatches))


def _compute(spec: FleetSpec, step: int, slow: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Seconds of each forward and backward without waiting, [pp, dp, tp, mb]."""
    size = (*shape(spec), spec.microbatches)
    lengths = np.ones((1, spec.dp, 1, spec.microbatches))
    for fault in spec.faults:
        if fault.kind == "sequence" and fault.affects(step):
            lengths = rng.lognormal(0.0, fault.numbers["spread"], lengths.shape)
    base = spec.forward_s * slow[..., None] * lengths
    forward = base * rng.normal(1.0, spec.noise, size).clip(0.5)
    return forward, 2 * base * rng.normal(1.0, spec.noise, size).clip(0.5)


def _slowness(spec: FleetSpec, step: int) -> Array:
    """Factor on each rank's compute, [pp, dp, tp]."""
    factor = np.ones(spec.ranks)
    for fault in spec.faults:
        if not fault.affects(step):
            continue
        ranks = _ranks(spec, fault.rank(), fault.node)
        if fault.kind in ("straggler", "slow_all"):
            factor[ranks] *= fault.numbers["factor"]
        elif fault.kind == "drift":
            factor[ranks] *= 1 + fault.numbers["per_step"] * (step - fault.since)
        elif fault.kind == "stage":
            per_stage = spec.ranks // spec.pp
            first = int(fault.numbers["stage"]) * per_stage
            factor[first : first + per_stage] *= fault.numbers["factor"]
    return factor.reshape(shape(spec))


def _ranks(spec: FleetSpec, rank: int, node: str) -> slice:
    """The ranks that a fault affects: one, those of a node, or all."""
    if node:
        first = int(node.rpartition("-")[2]) * spec.ranks_per_node
        return slice(first, first + spec.ranks_per_node)
    return slice(rank, rank + 1) if rank >= 0 else slice(None)


def _stalls(spec: FleetSpec, step: int) -> tuple[Array, Array]:
    """Seconds of data loading and of garbage collection before the first forward, [pp, dp, tp]."""
    data, gc = np.full(spec.ranks, spec.data_s), np.zeros(spec.ranks)
    for fault in spec.faults:
        ranks = _ranks(spec, fault.rank(), fault.node)
        if fault.kind == "data_stall" and fault.affects(step):
            data[ranks] += fault.numbers["seconds"]
        elif fault.kind == "gc" and fault.affects(step) and step % int(fault.numbers["every"]) == 0:
            gc[ranks] += fault.numbers["seconds"]
    return data.reshape(shape(spec)), gc.reshape(shape(spec))


def reduce_seconds(spec: FleetSpec, step: int) -> Array:
    """Seconds of the gradient all-reduce of each group, [pp, 1, tp]. A slow member slows its group."""
    seconds = np.full(shape(spec), spec.dp_s if spec.dp > 1 else 0.0)
    for fault in spec.faults:
        if fault.kind == "slow_link" and fault.affects(step):
            seconds.reshape(-1)[fault.rank()] *= fault.numbers["factor"]
    return np.asarray(seconds.max(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    """When each pass starts and how long it waited before, [pp, dp, mb]. A tensor-parallel group is one."""

    forward_start: Array
    forward_wait: Array
    backward_start: Array
    backward_wait: Array


def _pipeline(spec: FleetSpec, ready: Array, forward: Array, backward: Array) -> _Schedule:
    """The schedule of passes that take `forward` and `backward`, from when their data is `ready` [pp, dp]."""
    forward_start, forward_wait = np.zeros(forward.shape), np.zeros(forward.shape)
    for p in range(spec.pp):
        free = ready[p].copy()
        for m in range(spec.microbatches):
            arrives = forward_start[p - 1, :, m] + forward[p - 1, :, m] + spec.p2p_s if p else free
            forward_start[p, :, m] = np.maximum(free, arrives)
            forward_wait[p, :, m] = forward_start[p, :, m] - free
            free = forward_start[p, :, m] + forward[p, :, m]
    backward_start, backward_wait = np.zeros(forward.shape), np.zeros(forward.shape)
    for p in reversed(range(spec.pp)):
        free = forward_start[p, :, -1] + forward[p, :, -1]
        for m in range(spec.microbatches):
            last = p == spec.pp - 1
            arrives = free if last else backward_start[p + 1, :, m] + backward[p + 1, :, m] + spec.p2p_s
            backward_start[p, :, m] = np.maximum(free, arrives)
            backward_wait[p, :, m] = backward_start[p, :, m] - free
            free = backward_start[p, :, m] + backward[p, :, m]
    return _Schedule(
        forward_start=forward_start,
        forward_wait=forward_wait,
        backward_start=backward_start,
        backward_wait=backward_wait,
    )
