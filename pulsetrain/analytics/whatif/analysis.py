"""What-if analysis of a pipeline trace: how fast the job would be without stragglers, and who they are.

The trace is replayed on its dependency graph, once with the recorded durations and once for each question
with some of them replaced by the ideal: the mean over all workers and steps for compute, the median for
transfers. Method and definitions: arXiv 2505.05713. A slow-down that hits all workers alike is invisible here
(S is near 1); `fail_slow` finds it by the job's own history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pulsetrain.analytics.whatif.graph import P2P, Wave
from pulsetrain.analytics.whatif.trace import Bools, Floats, Trace, load, read
from pulsetrain.core.errors import UsageError

NOTABLE_SLOWDOWN = 1.1  # arXiv 2505.05713 calls a job straggling from here on
WORST_SHARE = 0.03  # arXiv 2505.05713, eq. 5: the workers that M_W sets right
CHUNK_CELLS = 1 << 15  # scenario x replica x step values swept at once: what stays in a core's cache


def analyze_file(path: Path) -> dict[str, Any]:
    """`analyze` of a Parquet file. Raises `UsageError` where it cannot be read or lacks a column."""
    return analyze(read(path))


def analyze(table: Any) -> dict[str, Any]:
    """The slow-down S and who causes it, from an Arrow table with one row for each operation.

    Columns: dp_rank, stage, step, optype, start_ts and duration (seconds), seq_id, and where known rank, mc
    and gmc. A step in which a worker lacks operations that the others have is left out and counted, and where
    that leaves no step, the replicas that lack some in nearly all; an operation type that the method does not
    know, and a row of impossible values, is ignored and counted. Raises `UsageError` for a table that lacks a
    column, has none of numbers where numbers belong, or no complete step.

    Returns S = T / T_ideal; M_W and M_S, the share of the slow-down that goes away when the worst 3 % of the
    workers, or the last stage, are set right (None where there is no slow-down to share); S by worker (global
    rank), stage, replica and operation type, worst first; `discrepancy`, |T - T_recorded| / T_recorded.
    """
    trace = load(table)
    kinds, stages, replicas = _kinds(trace), list(trace.stages), list(trace.replicas)
    fix_last = np.ones((1, len(stages), 1, 1), bool)
    fix_last[0, -1] = False
    everything = np.ones((1, len(stages), 1, 1), bool)
    by_stage = np.eye(len(stages), dtype=bool)[:, :, None, None]
    by_kind = np.eye(len(kinds), dtype=bool)[:, None, :, None]
    actual, ideal, rest = 1, 2, 2
    use = _stack(trace, everything, ~everything, by_stage, by_kind, fix_last)
    means = _sweep(trace, use).mean(axis=1)
    t, t_ideal = float(means[actual - 1]), float(means[ideal - 1])
    if not t_ideal > 0:
        raise UsageError("trace: no operation takes any time")
    s_stage = means[rest : rest + len(stages)] / t_ideal
    s_kind = means[rest + len(stages) : rest + len(stages) + len(kinds)] / t_ideal
    s_replica = _by_replica(trace).mean(axis=1) / t_ideal
    worker = np.minimum(s_replica[:, None], s_stage[None, :])
    fixed = float(_sweep(trace, ~_worst(trace, worker)).mean())
    recorded = float(trace.actual_step_s.mean())
    return {
        "S": t / t_ideal,
        "M_W": _share(t, fixed, t_ideal),
        "M_S": _share(t, float(means[-1]), t_ideal),
        "by_worker": _ranked(trace.rank.ravel().tolist(), worker.ravel()),
        "by_stage": _ranked(stages, s_stage),
        "by_replica": _ranked(replicas, s_replica),
        "by_op": _ranked(kinds, s_kind),
        "discrepancy": abs(t - recorded) / recorded if recorded > 0 else None,
        "step_s": recorded,
        "ideal_step_s": t_ideal,
        "steps": trace.actual_step_s.size,
        "dropped_steps": trace.dropped_steps,
        "dropped_replicas": trace.dropped_replicas,
        "ignored_rows": trace.ignored_rows,
    }


def sentences(answer: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people, the most likely cause first."""
    slow, worker, last = answer["S"], answer["M_W"] or 0.0, answer["M_S"] or 0.0
    lines = [
        f"The job is {slow:.3f} times slower than without stragglers: "
        f"{answer['step_s']:.3f} s a step, ideal {answer['ideal_step_s']:.3f} s, {answer['steps']} steps."
    ]
    if slow < NOTABLE_SLOWDOWN:
        lines.append("No straggler worth a name. A slow-down of all workers alike does not show here.")
    elif worker >= 0.5:
        lines.append(f"The worst 3 % of the workers explain {worker:.0%} of it: {_top(answer['by_worker'])}.")
    elif last >= 0.5:
        lines.append(f"The last pipeline stage explains {last:.0%} of it: {_top(answer['by_stage'])}.")
    else:
        lines.append(
            "Neither single workers nor the last stage explain it; uneven sequence lengths or pauses may."
        )
    if answer["dropped_replicas"]:
        lines.append(f"Left out for lack of operations: {answer['dropped_replicas']} replicas.")
    for name, key in (("worker", "by_worker"), ("stage", "by_stage"), ("operation", "by_op")):
        lines.append(f"  by {name}: {_top(answer[key], 4)}")
    lines.append(f"The replay of the recorded run is off by {answer['discrepancy'] or 0:.2%}.")
    return lines


def _top(values: dict[str, float], count: int = 1) -> str:
    return ", ".join(f"{name} ({value:.3f})" for name, value in list(values.items())[:count])


def _share(t: float, fixed: float, t_ideal: float) -> float | None:
    return (t - fixed) / (t - t_ideal) if t != t_ideal else None


def _ranked(names: Sequence[Any], values: Floats) -> dict[str, float]:
    order = sorted(range(len(names)), key=lambda i: -values[i])
    return {str(names[i]): float(values[i]) for i in order}


def _kind_name(kind: str) -> str:
    """Both ends of a transfer are one line in the answer."""
    return f"{kind.split('-')[0]}-pp-comm" if kind in P2P else kind


def _kinds(trace: Trace) -> list[str]:
    return sorted({_kind_name(op.kind) for op in trace.ops})


def _stack(trace: Trace, *masks: Bools) -> Bools:
    """Masks [scenario, stage, kind, replica], each axis possibly of length 1, as one array."""
    shape = (len(trace.stages), len(_kinds(trace)), 1)
    return np.concatenate([np.broadcast_to(m, (m.shape[0], *shape)) for m in masks])


def _worst(trace: Trace, worker: Floats) -> Bools:
    """Mask of the worst 3 % of workers, at least one; equals are taken from the lowest rank on."""
    count = math.ceil(worker.size * WORST_SHARE)
    order = np.lexsort((trace.rank.ravel(), -worker.ravel()))[:count]
    chosen = np.zeros(worker.size, bool)
    chosen[order] = True
    by_replica = chosen.reshape(worker.shape)  # [replica, stage]
    return by_replica.T[None, :, None, :]


def _sweep(trace: Trace, use: Bools) -> Floats:
    """Step times [scenario, step] where `use` [scenario, stage, kind, replica] says what keeps its recorded
    duration; everything else takes the ideal one."""
    scenarios, replicas, steps = use.shape[0], len(trace.replicas), trace.work.shape[2]
    chunk = max(1, CHUNK_CELLS // (scenarios * replicas))
    parts = [_replay(trace, use, trace.work[:, :, begin : begin + chunk]) for begin in range(0, steps, chunk)]
    return np.concatenate(parts, axis=1)


def _replay(trace: Trace, use: Bools, work: Floats) -> Floats:
    columns = {name: i for i, name in enumerate(_kinds(trace))}
    where = [(trace.stages.index(op.stage), columns[_kind_name(op.kind)]) for op in trace.ops]
    full: Bools = np.asarray(use.all(axis=(0, 3)))
    none: Bools = np.asarray(~use.any(axis=(0, 3)))

    def duration(op: int) -> Floats:
        stage, kind = where[op]
        kind = kind if use.shape[2] > 1 else 0
        if full[stage, kind]:
            return np.asarray(work[op : op + 1])
        if none[stage, kind]:
            return np.full((1, 1, 1), trace.ideal[op])
        return np.asarray(np.where(use[:, stage, kind, :, None], work[op][None], trace.ideal[op]))

    return _run(trace.waves, duration, (use.shape[0], work.shape[2]))


def _by_replica(trace: Trace) -> Floats:
    """Step times [replica, step] with one replica as recorded and all others ideal.

    The others then are one and the same pipeline, so each scenario is swept as two: its own and the ideal.
    """
    replicas, steps = trace.work.shape[1:]
    if replicas == 1:
        return _sweep(trace, np.ones((1, len(trace.stages), 1, 1), bool))
    chunk = max(1, CHUNK_CELLS // (2 * replicas))
    parts: list[Floats] = []
    for begin in range(0, steps, chunk):
        work = trace.work[:, :, begin : begin + chunk]
        paired = np.empty((replicas, 2, work.shape[2]))

        def duration(op: int, work: Floats = work, paired: Floats = paired) -> Floats:
            paired[:, 0] = work[op]
            paired[:, 1] = trace.ideal[op]
            return paired

        parts.append(_run(trace.waves, duration, (replicas, work.shape[2])))
    return np.concatenate(parts, axis=1)


def _run(waves: Sequence[Wave], duration: Any, shape: tuple[int, int]) -> Floats:
    """One pass over the graph. Arrays are [scenario, replica, step] and broadcast; gives [scenario, step]."""
    end: dict[int, Floats] = {}
    zero = np.zeros((1, 1, 1))
    last = zero
    for wave in waves:
        begin = zero
        for after in wave.after:
            for before in after:
                begin = np.maximum(begin, end[before]) if begin is not zero else end[before]
        if wave.replicas and begin.shape[1] > 1:
            begin = begin.max(axis=1, keepdims=True)
        for member in wave.members:
            end[member] = begin + duration(member)
            last = np.maximum(last, end[member].max(axis=1, keepdims=True))
    return np.broadcast_to(last[:, 0, :], shape).copy()
