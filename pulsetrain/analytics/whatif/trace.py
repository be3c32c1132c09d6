"""A pipeline trace as arrays [operation, replica, step], read without pandas to start fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.whatif.graph import COMMUNICATION, KNOWN, Op, Wave, build
from pulsetrain.core.errors import UsageError

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
PLACE = ("dp_rank", "stage", "step", "seq_id")
LEAST_WHOLE = 0.1  # a replica that has every operation in fewer of the steps lacks a worker
OPTIONAL = {"rank": -1, "mc": -1, "gmc": -1}
NEGATIVE_TRANSFER_S = (
    0.01  # a transfer that ends this much before its peer began: clocks disagree, it is zero
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Durations of every operation as arrays [operation, replica, step], in seconds."""

    ops: tuple[Op, ...]
    waves: tuple[Wave, ...]
    work: Floats  # compute: its duration; communication: the transfer after the last member had arrived
    ideal: Floats  # [operation]
    actual_step_s: Floats  # [step], as recorded
    rank: NDArray[np.int64]  # [replica, stage], global rank
    replicas: tuple[int, ...]
    stages: tuple[int, ...]
    dropped_steps: int
    dropped_replicas: int
    ignored_rows: int


def read(path: Path) -> Any:
    """The columns of a Parquet trace as an Arrow table. Raises `UsageError` where it cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, read_dictionary=["optype"]) as file:
            return file.read(columns=[c for c in COLUMNS if c in file.schema_arrow.names])
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror or 'cannot be read as Parquet'}") from error
    except pa.ArrowException as error:
        raise UsageError(f"trace {path}: not a Parquet file ({str(error).splitlines()[0]})") from error


def load(table: Any) -> Trace:
    """The trace as arrays, with its graph. Raises `UsageError` for a table that is no usable trace."""
    rows = _columns(table)
    known, kinds = rows.pop("known"), rows.pop("kinds")
    ignored = int((~known).sum())
    rows = {name: column[known] for name, column in rows.items()}
    if rows["step"].size == 0:
        raise UsageError(f"trace: no sound operation of a known type; known: {', '.join(KNOWN)}")
    found = np.unique(rows["dp_rank"]).size
    rows = _without_broken_replicas(rows)
    axes = {name: _codes(rows[name]) for name in ("dp_rank", "stage", "step")}
    (dp, dps), (stage, stages), (step, steps) = axes["dp_rank"], axes["stage"], axes["step"]
    cell = dp * steps.size + step
    model = _model_rows(cell, dps.size, steps.size)
    seq, seqs = _codes(rows["seq_id"])
    name = (rows["optype"].astype(np.int64) * seqs.size + seq) * stages.size + stage
    index = np.full(int(name.max()) + 1, -1, np.int64)
    model = model[np.unique(name[model], return_index=True)[1]]
    index[name[model]] = np.arange(model.size)
    op = index[name]
    inside = op >= 0
    where = op[inside] * (dps.size * steps.size) + cell[inside]
    shape = (model.size, dps.size, steps.size)
    start = _grid(rows["start_ts"][inside], where, shape)
    duration = _grid(rows["duration"][inside], where, shape)
    complete = ~np.isnan(start).any(axis=(0, 1))
    if not complete.any():
        raise UsageError("trace: no step in which every replica has the same operations")
    if not complete.all():
        start, duration = start[:, :, complete], duration[:, :, complete]
    ops = _ops(rows, model, kinds, stage, stages)
    waves = build(ops, replicated=dps.size > 1)
    end = start + duration
    work = _work(waves, start, end, duration)
    return Trace(
        ops=ops,
        waves=tuple(waves),
        work=work,
        ideal=_ideal(ops, work),
        actual_step_s=(end.max(axis=(0, 1)) - start.min(axis=(0, 1))).astype(np.float64),
        rank=_ranks(rows["rank"], dp, stage, dps.size, stages.size),
        replicas=tuple(dps.tolist()),
        stages=tuple(stages.tolist()),
        dropped_steps=int((~complete).sum()),
        dropped_replicas=found - dps.size,
        ignored_rows=ignored + int((~inside).sum()),
    )


def _columns(table: Any) -> dict[str, Any]:
    missing = [c for c in COLUMNS if c not in table.column_names and c not in OPTIONAL]
    if missing:
        raise UsageError(f"trace lacks column {', '.join(missing)}; needed: {', '.join(COLUMNS)}")
    import pyarrow as pa

    rows: dict[str, Any] = {}
    for name in COLUMNS:
        if name == "optype":
            continue
        if name not in table.column_names:
            rows[name] = np.full(table.num_rows, OPTIONAL[name], np.int64)
            continue
        rows[name] = _numbers(name, table[name])
    kind = table["optype"]
    kind = kind if pa.types.is_dictionary(kind.type) else kind.dictionary_encode()
    kind = kind.chunk(0) if kind.num_chunks == 1 else kind.unify_dictionaries().combine_chunks()
    kinds = kind.dictionary.to_pylist()
    codes = kind.indices.fill_null(len(kinds)) if kind.null_count else kind.indices
    rows["optype"] = np.from_dlpack(codes)
    usable = np.array([*(k in KNOWN for k in kinds), False])
    sound = np.isfinite(rows["start_ts"]) & np.isfinite(rows["duration"]) & (rows["duration"] >= 0)
    for name in PLACE:
        sound &= rows[name] >= 0
    rows["known"] = usable[rows["optype"]] & sound if table.num_rows else np.zeros(0, bool)
    rows["kinds"] = kinds
    return rows


def _numbers(name: str, column: Any) -> NDArray[Any]:
    """One column of numbers; nulls are -1 where it counts, else NaN. Raises `UsageError` for another type."""
    import pyarrow as pa

    types, kind = pa.types, column.type
    wanted = pa.float64() if name in ("start_ts", "duration") else pa.int64()
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
        raise UsageError(f"trace: column {name} is {kind}, allowed: numbers")
    if types.is_null(kind) or kind == pa.uint64() or (types.is_floating(kind) and wanted == pa.int64()):
        try:
            column = column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise UsageError(f"trace: column {name} holds what is no whole number: {error}") from error
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if array.null_count:
        array = array.fill_null(-1 if types.is_integer(array.type) else float("nan"))
    return np.from_dlpack(array)  # Array.to_numpy imports pandas: 4 s where nothing is compiled yet


def _without_broken_replicas(rows: dict[str, Any]) -> dict[str, Any]:
    """`rows` without replicas that lack operations in most steps, where no step is whole for all of them."""
    (dp, dps), (step, steps) = _codes(rows["dp_rank"]), _codes(rows["step"])
    counts = np.bincount(dp * steps.size + step, minlength=dps.size * steps.size)
    whole = (counts == np.bincount(counts[counts > 0]).argmax()).reshape(dps.size, steps.size)
    kept = whole.mean(axis=1) >= LEAST_WHOLE
    if whole.all(axis=0).any() or kept.all() or not kept.any():
        return rows
    return {name: column[kept[dp]] for name, column in rows.items()}


def _codes(column: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Position of each value among the sorted distinct ones, and those: by a table where that fits."""
    low, high = int(column.min()), int(column.max())
    if high - low > 1 << 24:
        values, codes = np.unique(column, return_inverse=True)
        return codes.astype(np.int64), values.astype(np.int64)
    shifted = column.astype(np.int64) - low
    values = np.flatnonzero(np.bincount(shifted, minlength=high - low + 1))
    table = np.zeros(high - low + 1, np.int64)
    table[values] = np.arange(values.size)
    return table[shifted], values + low


def _model_rows(cell: NDArray[np.int64], replicas: int, steps: int) -> NDArray[np.int64]:
    """Rows of the replica and step that serve as the model: the first with the usual number of operations."""
    counts = np.bincount(cell, minlength=replicas * steps)
    usual = np.bincount(counts[counts > 0]).argmax()
    by_step = counts.reshape(replicas, steps)
    whole = np.flatnonzero((by_step == usual).all(axis=0))
    first = int(whole[0]) if whole.size else int(np.flatnonzero(counts == usual)[0])
    return np.flatnonzero(cell == first)


def _ops(
    rows: dict[str, Any],
    model: NDArray[np.int64],
    kinds: list[str],
    stage: NDArray[np.int64],
    stages: NDArray[np.int64],
) -> tuple[Op, ...]:
    begin = rows["start_ts"][model].astype(np.float64)
    end = begin + rows["duration"][model]
    names = [kinds[k] for k in rows["optype"][model]]
    place = stages[stage[model]].tolist()
    parts = zip(
        names,
        rows["seq_id"][model].tolist(),
        place,
        begin.tolist(),
        end.tolist(),
        rows["mc"][model].tolist(),
        rows["gmc"][model].tolist(),
        strict=True,
    )
    return tuple(
        Op(index=i, kind=k, seq=s, stage=p, start=b, end=e, chunk=c, model_chunk=g)
        for i, (k, s, p, b, e, c, g) in enumerate(parts)
    )


def _grid(values: NDArray[Any], where: NDArray[np.int64], shape: tuple[int, int, int]) -> Floats:
    """`values` at flat positions `where`, NaN elsewhere, in the precision that the trace has."""
    grid = np.full(math.prod(shape), np.nan, np.result_type(values.dtype, np.float32))
    grid[where] = values
    return grid.reshape(shape)


def _work(waves: Sequence[Wave], start: Floats, end: Floats, duration: Floats) -> Floats:
    """Compute keeps its duration; a transfer counts from the moment when its last member had arrived."""
    work = duration.astype(np.float64)
    for wave in waves:
        if not wave.communication:
            continue
        members = list(wave.members)
        together = start[members].max(axis=0)
        if wave.replicas:
            together = together.max(axis=0, keepdims=True)
        transfer = end[members] - together
        work[members] = np.where(transfer <= -NEGATIVE_TRANSFER_S, 0.0, transfer)
    return work


def _ideal(ops: Sequence[Op], work: Floats) -> Floats:
    ideal = np.zeros(len(ops))
    for kind in {op.kind for op in ops}:
        members = [op.index for op in ops if op.kind == kind]
        values = work[members].ravel()
        ideal[members] = np.median(values) if kind in COMMUNICATION else values.mean()
    return ideal


def _ranks(
    rank: NDArray[Any], dp: NDArray[np.int64], stage: NDArray[np.int64], replicas: int, stages: int
) -> NDArray[np.int64]:
    """Global rank of each worker; its place in the grid where the trace does not say."""
    table = np.arange(replicas * stages, dtype=np.int64)
    place = dp * stages + stage
    said = rank >= 0
    table[place[said]] = rank[said]
    return table.reshape(replicas, stages)
