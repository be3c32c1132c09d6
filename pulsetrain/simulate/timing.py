"""How long everything takes in a simulated step: a pipeline of stages, synchronised by its collectives. Pure.

Arrays go by (pp, dp, tp) and, where a value differs by microbatch, one more axis for it; seconds throughout.
The schedule is GPipe's: all forwards, then all backwards. Inside a tensor-parallel group everyone waits for
the slowest in every collective; across replicas everyone waits once, in the gradient all-reduce.
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
    optimizer: Array
    checkpoint: float
    length: float


def shape(spec: FleetSpec) -> tuple[int, int, int]:
    """(pp, dp, tp): rank = (pp_coordinate * dp + dp_coordinate) * tp + tp_coordinate."""
    return (spec.pp, spec.dp, spec.tp)


def simulate_step(spec: FleetSpec, step: int) -> StepTimes:
    """The times of one step; equal spec and step give equal times, in whatever order steps are asked for."""
    rng = np.random.default_rng((spec.seed, step))
    slow = _slowness(spec, step)
    own_f, own_b = _compute(spec, step, slow, rng)
    data, gc = _stalls(spec, step)
    own_f[..., 0] += gc
    tp_s = spec.tp_s if spec.tp > 1 else 0.0
    forward = np.broadcast_to(own_f.max(axis=2, keepdims=True) + tp_s, own_f.shape)
    backward = np.broadcast_to(own_b.max(axis=2, keepdims=True) + 2 * tp_s, own_b.shape)
    ready = data.max(axis=2)
    f_start, b_start, f_wait, b_wait = _pipeline(spec, ready, forward[:, :, 0], backward[:, :, 0])
    reduce_start = b_start[..., -1] + backward[:, :, 0, -1]
    reduce_end = reduce_start.max(axis=1, keepdims=True)[..., None] + reduce_seconds(spec, step)
    begins = np.broadcast_to(reduce_start[..., None], shape(spec))
    optimizer = spec.optimizer_s * slow * rng.normal(1.0, spec.noise / 2, shape(spec)).clip(0.5)
    saves = spec.checkpoint_every > 0 and step % spec.checkpoint_every == spec.checkpoint_every - 1
    checkpoint = 0.5 * spec.forward_s * spec.microbatches if saves else 0.0
    return StepTimes(
        forward_start=_spread(f_start, spec),
        forward=forward,
        forward_own=own_f,
        backward_start=_spread(b_start, spec),
        backward=backward,
        backward_own=own_b,
        forward_wait=_spread(f_wait, spec),
        backward_wait=_spread(b_wait, spec),
        data=data,
        gc=gc,
        reduce_start=begins,
        reduce=reduce_end - begins,
        optimizer=optimizer,
        checkpoint=checkpoint,
        length=float((reduce_end + optimizer).max()) + checkpoint,
    )


def _spread(values: Array, spec: FleetSpec) -> Array:
    """(pp, dp, mb) values of a tensor-parallel group as each of its ranks' own."""
    pp, dp, microbatches = values.shape
    return np.broadcast_to(values[:, :, None, :], (pp, dp, spec.tp, microbatches))


def _compute(spec: FleetSpec, step: int, slow: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Own seconds of each forward and backward, (pp, dp, tp, mb)."""
    size = (*shape(spec), spec.microbatches)
    lengths = np.ones((1, spec.dp, 1, spec.microbatches))
    for fault in spec.faults:
        if fault.kind == "sequence" and fault.strikes(step):
            lengths = rng.lognormal(0.0, fault.numbers["spread"], lengths.shape)
    base = spec.forward_s * slow[..., None] * lengths
    forward = base * rng.normal(1.0, spec.noise, size).clip(0.5)
    return forward, 2 * base * rng.normal(1.0, spec.noise, size).clip(0.5)


def _slowness(spec: FleetSpec, step: int) -> Array:
    """Factor on each rank's compute, (pp, dp, tp)."""
    factor = np.ones(spec.ranks)
    for fault in spec.faults:
        if not fault.strikes(step):
            continue
        who = _who(spec, fault.rank(), fault.node)
        if fault.kind in ("straggler", "slow_all"):
            factor[who] *= fault.numbers["factor"]
        elif fault.kind == "drift":
            factor[who] *= 1 + fault.numbers["per_step"] * (step - fault.since)
        elif fault.kind == "stage":
            per_stage = spec.ranks // spec.pp
            first = int(fault.numbers["stage"]) * per_stage
            factor[first : first + per_stage] *= fault.numbers["factor"]
    return factor.reshape(shape(spec))


def _who(spec: FleetSpec, rank: int, node: str) -> slice:
    """The ranks that a fault strikes: one, a node's, or all."""
    if node:
        first = int(node.rpartition("-")[2]) * spec.ranks_per_node
        return slice(first, first + spec.ranks_per_node)
    return slice(rank, rank + 1) if rank >= 0 else slice(None)


def _stalls(spec: FleetSpec, step: int) -> tuple[Array, Array]:
    """Seconds of data loading and of garbage collection before the first forward, (pp, dp, tp)."""
    data, gc = np.full(spec.ranks, spec.data_s), np.zeros(spec.ranks)
    for fault in spec.faults:
        who = _who(spec, fault.rank(), fault.node)
        if fault.kind == "data_stall" and fault.strikes(step):
            data[who] += fault.numbers["seconds"]
        elif fault.kind == "gc" and fault.strikes(step) and step % int(fault.numbers["every"]) == 0:
            gc[who] += fault.numbers["seconds"]
    return data.reshape(shape(spec)), gc.reshape(shape(spec))


def reduce_seconds(spec: FleetSpec, step: int) -> Array:
    """Transfer time of the gradient all-reduce of each group, (pp, 1, tp): a slow member slows its group."""
    seconds = np.full(shape(spec), spec.dp_s if spec.dp > 1 else 0.0)
    for fault in spec.faults:
        if fault.kind == "slow_link" and fault.strikes(step):
            seconds.reshape(-1)[fault.rank()] *= fault.numbers["factor"]
    return np.asarray(seconds.max(axis=1, keepdims=True))


def _pipeline(
    spec: FleetSpec, ready: Array, forward: Array, backward: Array
) -> tuple[Array, Array, Array, Array]:
    """Starts and waits of every forward and backward, (pp, dp, mb), for tensor-parallel groups as one."""
    stages, microbatches = spec.pp, spec.microbatches
    f_start, b_start, f_wait, b_wait = (np.zeros(forward.shape) for _ in range(4))
    for p in range(stages):
        free = ready[p].copy()
        for m in range(microbatches):
            arrives = f_start[p - 1, :, m] + forward[p - 1, :, m] + spec.p2p_s if p else free
            f_start[p, :, m] = np.maximum(free, arrives)
            f_wait[p, :, m] = f_start[p, :, m] - free
            free = f_start[p, :, m] + forward[p, :, m]
    for p in reversed(range(stages)):
        free = f_start[p, :, -1] + forward[p, :, -1]
        for m in range(microbatches):
            last = p == stages - 1
            arrives = free if last else b_start[p + 1, :, m] + backward[p + 1, :, m] + spec.p2p_s
            b_start[p, :, m] = np.maximum(free, arrives)
            b_wait[p, :, m] = b_start[p, :, m] - free
            free = b_start[p, :, m] + backward[p, :, m]
    return f_start, b_start, f_wait, b_wait
