"""What-if analysis of a pipeline trace: how fast the job would be without stragglers, and who they are.

The trace is replayed on its dependency graph: once with the recorded durations, and once for each question
with some of them replaced by the ideal. The ideal is the mean over all workers and steps for compute, and the
median for transfers. Method and definitions: arXiv 2505.05713. A slowdown that hits all workers alike does
not show here, because S stays near 1. The `fail_slow` analyzer finds it by the job's own history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from pulsetrain.analytics.whatif.operations import P2P, Wave
from pulsetrain.analytics.whatif.trace import Bools, Floats, Trace, load, read
from pulsetrain.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

NOTABLE_SLOWDOWN = 1.1  # arXiv 2505.05713 calls a job straggling from here on
WORST_SHARE = 0.03  # arXiv 2505.05713, eq. 5: the share of workers that M_W sets right
CHUNK_CELLS = 1 << 15  # scenario x replica x step values replayed at once: what fits in a core's cache


class WhatIfAnswer(TypedDict):
    """What `pulsetrain whatif` prints as JSON.

    `S` is T / T_ideal. `M_W` and `M_S` are the shares of the slowdown that go away when the worst 3 % of the
    workers, or the last stage, are set right; None where there is no slowdown. The `by_*` fields are S of
    each worker (global rank), stage, replica and kind of operation, the worst first. `discrepancy` is |T -
    T_recorded| / T_recorded.
    """

    S: float
    M_W: float | None
    M_S: float | None
    by_worker: dict[str, float]
    by_stage: dict[str, float]
    by_replica: dict[str, float]
    by_op: dict[str, float]
    discrepancy: float | None
    step_s: float
    ideal_step_s: float
    steps: int
    dropped_steps: int
    dropped_replicas: int
    ignored_rows: int


@dataclass(frozen=True, kw_only=True)
class _StepTimes:
    """Mean step times in seconds. The recorded one, and those of a replay: as is, ideal, and what-if."""

    recorded: float
    actual: float
    ideal: float
    by_stage: Floats  # only this stage as recorded
    by_kind: Floats  # only this kind of operation as recorded
    by_replica: Floats  # only this replica as recorded
    last_stage_fixed: float


def analyze_file(path: Path) -> WhatIfAnswer:
    """Return `analyze` of a Parquet file. Raises `UsageError` where it cannot be read, and as `analyze`."""
    return analyze(read(path))


def analyze(table: pa.Table) -> WhatIfAnswer:
    """Return the slowdown and who causes it, from an Arrow table with one row for each operation.

    Columns: dp_rank, stage, step, optype, start_ts and duration (seconds), seq_id, and where known rank, mc
    and gmc. Left out and counted are steps in which a worker lacks operations that others have, replicas that
    lack some in nearly all steps, and rows of an unknown operation type or with impossible values.

    Raises `UsageError` for a table that lacks a column, has other values where numbers belong, or has no
    complete step.

    >>> import pyarrow as pa
    >>> common = {"stage": 0, "step": 0, "optype": "forward-compute", "start_ts": 0.0, "seq_id": 0}
    >>> rows = [{"dp_rank": 0, "duration": 1.0} | common, {"dp_rank": 1, "duration": 3.0} | common]
    >>> answer = analyze(pa.Table.from_pylist(rows))
    >>> answer["S"], answer["by_worker"]
    (1.5, {'1': 1.5, '0': 1.0})
    """
    trace = load(table)
    times = _step_times(trace)
    if not times.ideal > 0:
        raise UsageError("trace: no operation takes any time")
    workers = np.minimum(times.by_replica[:, None], times.by_stage[None, :]) / times.ideal
    worst_fixed = float(_sweep(trace, ~_worst(trace, workers)).mean())
    return {
        "S": times.actual / times.ideal,
        "M_W": _share(times, worst_fixed),
        "M_S": _share(times, times.last_stage_fixed),
        "by_worker": _ranked(trace.rank.ravel().tolist(), workers.ravel()),
        "by_stage": _ranked(trace.stages, times.by_stage / times.ideal),
        "by_replica": _ranked(trace.replicas, times.by_replica / times.ideal),
        "by_op": _ranked(_kinds(trace), times.by_kind / times.ideal),
        "discrepancy": abs(times.actual - times.recorded) / times.recorded if times.recorded > 0 else None,
        "step_s": times.recorded,
        "ideal_step_s": times.ideal,
        "steps": trace.actual_step_s.size,
        "dropped_steps": trace.dropped_steps,
        "dropped_replicas": trace.dropped_replicas,
        "ignored_rows": trace.ignored_rows,
    }


def _step_times(trace: Trace) -> _StepTimes:
    """Replay all scenarios that do not depend on the result of another."""
    kinds, stages = len(_kinds(trace)), len(trace.stages)
    everything = np.ones((1, stages, 1, 1), bool)
    last_stage = np.zeros((1, stages, 1, 1), bool)
    last_stage[0, -1] = True
    one_stage = np.eye(stages, dtype=bool)[:, :, None, None]
    one_kind = np.eye(kinds, dtype=bool)[:, None, :, None]
    as_recorded = _stack(trace, everything, ~everything, one_stage, one_kind, ~last_stage)
    means = _sweep(trace, as_recorded).mean(axis=1)
    return _StepTimes(
        recorded=float(trace.actual_step_s.mean()),
        actual=float(means[0]),
        ideal=float(means[1]),
        by_stage=means[2 : 2 + stages],
        by_kind=means[2 + stages : 2 + stages + kinds],
        by_replica=_by_replica(trace).mean(axis=1),
        last_stage_fixed=float(means[-1]),
    )


def _share(times: _StepTimes, fixed: float) -> float | None:
    """Return the share of the slowdown that is gone at a step time of `fixed`; None without a slowdown."""
    return (times.actual - fixed) / (times.actual - times.ideal) if times.actual != times.ideal else None


def sentences(answer: WhatIfAnswer) -> list[str]:
    """Return the answer as a few lines of text, the most likely cause first."""
    slow, worker, last = answer["S"], answer["M_W"] or 0.0, answer["M_S"] or 0.0
    lines = [
        f"The job is {slow:.3f} times slower than without stragglers: "
        f"{answer['step_s']:.3f} s a step, ideal {answer['ideal_step_s']:.3f} s, {answer['steps']} steps."
    ]
    if slow < NOTABLE_SLOWDOWN:
        lines.append("No straggler of note. A slowdown of all workers alike does not show here.")
    elif worker >= 0.5:
        lines.append(f"The worst 3 % of the workers explain {worker:.0%} of it: {_top(answer['by_worker'])}.")
    elif last >= 0.5:
        lines.append(f"The last pipeline stage explains {last:.0%} of it: {_top(answer['by_stage'])}.")
    else:
        lines.append(
            "Neither single workers nor the last stage explain it. Uneven sequence lengths or pauses may."
        )
    if answer["dropped_replicas"]:
        lines.append(f"Left out for lack of operations: {answer['dropped_replicas']} replicas.")
    lines.append(f"  by worker: {_top(answer['by_worker'], 4)}")
    lines.append(f"  by stage: {_top(answer['by_stage'], 4)}")
    lines.append(f"  by operation: {_top(answer['by_op'], 4)}")
    lines.append(f"The replay of the recorded run is off by {answer['discrepancy'] or 0:.2%}.")
    return lines


def _top(values: dict[str, float], count: int = 1) -> str:
    return ", ".join(f"{name} ({value:.3f})" for name, value in list(values.items())[:count])


def _ranked(names: Sequence[object], values: Floats) -> dict[str, float]:
    order = sorted(range(len(names)), key=lambda i: -values[i])
    return {str(names[i]): float(values[i]) for i in order}


def _kind_name(kind: str) -> str:
    """Return the name in the answer, which is the same for both ends of a transfer."""
    return f"{kind.split('-')[0]}-pp-comm" if kind in P2P else kind


def _kinds(trace: Trace) -> list[str]:
    return sorted({_kind_name(op.kind) for op in trace.ops})


def _stack(trace: Trace, *masks: Bools) -> Bools:
    """Return masks [scenario, stage, kind, replica] as one array. An axis of a mask may have length 1."""
    shape = (len(trace.stages), len(_kinds(trace)), 1)
    return np.concatenate([np.broadcast_to(m, (m.shape[0], *shape)) for m in masks])


def _worst(trace: Trace, worker: Floats) -> Bools:
    """Return the mask of the worst 3 % of workers, at least one. Of equal ones, lower ranks come first."""
    count = math.ceil(worker.size * WORST_SHARE)
    order = np.lexsort((trace.rank.ravel(), -worker.ravel()))[:count]
    chosen = np.zeros(worker.size, bool)
    chosen[order] = True
    by_replica = chosen.reshape(worker.shape)  # [replica, stage]
    return by_replica.T[None, :, None, :]


def _sweep(trace: Trace, use: Bools) -> Floats:
    """Return step times [scenario, step].

    `use` [scenario, stage, kind, replica] says what takes its recorded duration. The rest takes the ideal
    one.
    """
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
    """Return step times [replica, step] with one replica as recorded and all others ideal.

    The others are equal, so each scenario is replayed with two replicas: the recorded one and an ideal one.
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


def _run(waves: Sequence[Wave], duration: Callable[[int], Floats], shape: tuple[int, int]) -> Floats:
    """Return step times [scenario, step] from one pass over the graph.

    `duration` gives an array of each operation that broadcasts to [scenario, replica, step].
    """
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
