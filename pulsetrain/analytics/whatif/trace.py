"""A pipeline trace as arrays [operation, replica, step]. It is read without pandas, which starts slowly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.whatif.graph import build
from pulsetrain.analytics.whatif.operations import COMMUNICATION, KNOWN, Op, Wave
from pulsetrain.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from pulsetrain.records.arrow import ArrowColumn, DictionaryColumn

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
OPTIONAL = ("rank", "mc", "gmc")  # -1 where the table does not have them
KEYS = ("dp_rank", "stage", "step", "seq_id")  # never negative in a sound row
MIN_COMPLETE_STEPS = 0.1  # a replica that has all operations in a smaller share of steps lacks a worker
MAX_CLOCK_ERROR_S = 0.01  # a transfer that ends this much before its peer began takes no time
MAX_TABLE = 1 << 24  # span of values that are numbered through a table

Floats = NDArray[np.float64]  # or of 32 bits, where the trace has no more
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Durations of every operation as arrays [operation, replica, step], in seconds.

    `work` is the duration of compute. For communication it is the transfer after the last member had arrived.
    `ideal` [operation] is the time without stragglers. `actual_step_s` [step] is as recorded. `rank`
    [replica, stage] is the global rank.
    """

    ops: tuple[Op, ...]
    waves: tuple[Wave, ...]
    work: Floats
    ideal: Floats
    actual_step_s: Floats
    rank: Integers
    replicas: tuple[int, ...]
    stages: tuple[int, ...]
    dropped_steps: int
    dropped_replicas: int
    ignored_rows: int


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of a trace as columns of one length. `kind` is an index into the kinds of operations."""

    dp_rank: Integers
    stage: Integers
    rank: Integers
    step: Integers
    seq_id: Integers
    mc: Integers
    gmc: Integers
    start_ts: Floats
    duration: Floats
    kind: Integers

    @property
    def size(self) -> int:
        return len(self.kind)

    def take(self, index: Bools | Integers) -> _Rows:
        """Return the rows at `index`, or where it is true."""
        return _Rows(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """The distinct values of a column, sorted, and the position of each row's value among them."""

    values: Integers
    position: Integers

    @property
    def size(self) -> int:
        return int(self.values.size)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where each row goes in an array [operation, replica, step].

    `op` has the operation of each row, -1 for one that the model step does not have.
    """

    ops: tuple[Op, ...]
    op: Integers
    replicas: _Axis
    stages: _Axis
    steps: _Axis

    @property
    def inside(self) -> Bools:
        """Rows whose operation the model step has."""
        return self.op >= 0

    def grid(self, values: Floats) -> Floats:
        """Return `values` of rows as an array [operation, replica, step], NaN where there is no row."""
        inside = self.inside
        shape = (len(self.ops), self.replicas.size, self.steps.size)
        cell = self.replicas.position[inside] * self.steps.size + self.steps.position[inside]
        grid = np.full(math.prod(shape), np.nan, np.result_type(values.dtype, np.float32))
        grid[self.op[inside] * (self.replicas.size * self.steps.size) + cell] = values[inside]
        return grid.reshape(shape)


def read(path: Path) -> pa.Table:
    """Return the columns of a Parquet trace. Raises `UsageError` where it cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, read_dictionary=["optype"]) as file:
            return file.read(columns=[c for c in COLUMNS if c in file.schema_arrow.names])
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror or 'cannot be read as Parquet'}") from error
    except pa.ArrowException as error:
        raise UsageError(f"trace {path}: not a Parquet file ({str(error).splitlines()[0]})") from error


def load(table: pa.Table) -> Trace:
    """Return the trace as arrays, with its graph. Raises `UsageError` for a table that is no usable trace."""
    rows, kinds = _rows(table)
    sound = rows.take(_sound(rows, kinds))
    if sound.size == 0:
        raise UsageError(f"trace: no sound operation of a known type; known: {', '.join(KNOWN)}")
    kept = _without_broken_replicas(sound)
    layout = _layout(kept, kinds)
    start, duration = layout.grid(kept.start_ts), layout.grid(kept.duration)
    complete = ~np.isnan(start).any(axis=(0, 1))
    if not complete.any():
        raise UsageError("trace: no step in which every replica has the same operations")
    if not complete.all():
        start, duration = start[:, :, complete], duration[:, :, complete]
    waves = build(layout.ops, replicated=layout.replicas.size > 1)
    end = start + duration
    work = _work(waves, start, end, duration)
    return Trace(
        ops=layout.ops,
        waves=tuple(waves),
        work=work,
        ideal=_ideal(layout.ops, work),
        actual_step_s=(end.max(axis=(0, 1)) - start.min(axis=(0, 1))).astype(np.float64),
        rank=_ranks(kept.rank, layout),
        replicas=tuple(layout.replicas.values.tolist()),
        stages=tuple(layout.stages.values.tolist()),
        dropped_steps=int((~complete).sum()),
        dropped_replicas=np.unique(sound.dp_rank).size - layout.replicas.size,
        ignored_rows=rows.size - sound.size + int((~layout.inside).sum()),
    )


# -- columns ---------------------------------------------------------------------------------------------


def _rows(table: pa.Table) -> tuple[_Rows, list[str]]:
    """Return the rows of the table, and the kinds of operations. Raises `UsageError` for a wrong column."""
    missing = [c for c in COLUMNS if c not in table.column_names and c not in OPTIONAL]
    if missing:
        raise UsageError(f"trace lacks column {', '.join(missing)}; needed: {', '.join(COLUMNS)}")
    integers = {
        name: np.asarray(_numbers(name, table[name]), np.int64)
        if name in table.column_names
        else np.full(table.num_rows, -1, np.int64)
        for name in (*KEYS, *OPTIONAL)
    }
    kind, kinds = _kinds(table["optype"])
    start, duration = (_numbers(name, table[name]) for name in ("start_ts", "duration"))
    return _Rows(**integers, start_ts=start, duration=duration, kind=kind), kinds


def _kinds(column: ArrowColumn) -> tuple[Integers, list[str]]:
    """Return an index into the kinds for each row, and the kinds. The index of a null is beyond them."""
    import pyarrow as pa

    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    array = cast("DictionaryColumn", whole)
    kinds = [str(kind) for kind in array.dictionary.to_pylist()]
    codes = array.indices.fill_null(len(kinds)) if array.null_count else array.indices
    return np.asarray(np.from_dlpack(codes), np.int64), kinds


def _numbers(name: str, column: ArrowColumn) -> Floats:
    """Return a column of numbers. A null is -1 in a column of integers, else NaN.

    Raises `UsageError` for a column of another type.
    """
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
        array = array.fill_null(pa.scalar(-1 if types.is_integer(array.type) else float("nan"), array.type))
    # `Array.to_numpy` imports pandas, which takes 4 s where nothing is compiled yet.
    return cast(Floats, np.from_dlpack(cast("pa.DoubleArray", array)))


def _sound(rows: _Rows, kinds: Sequence[str]) -> Bools:
    """Return which rows have a known kind and possible values."""
    if not rows.size:
        return np.zeros(0, np.bool_)
    known = np.array([*(kind in KNOWN for kind in kinds), False])
    sound: Bools = known[rows.kind] & np.isfinite(rows.start_ts) & np.isfinite(rows.duration)
    sound &= rows.duration >= 0
    for column in (rows.dp_rank, rows.stage, rows.step, rows.seq_id):
        sound &= column >= 0
    return sound


# -- layout ----------------------------------------------------------------------------------------------


def _axis(column: Integers) -> _Axis:
    """Return the axis of a column. Where its values lie close together, they are numbered through a table."""
    low, high = int(column.min()), int(column.max())
    if high - low > MAX_TABLE:
        values, position = np.unique(column, return_inverse=True)
        return _Axis(values=values, position=position.astype(np.int64))
    shifted = column - low
    values = np.flatnonzero(np.bincount(shifted, minlength=high - low + 1))
    table = np.zeros(high - low + 1, np.int64)
    table[values] = np.arange(values.size)
    return _Axis(values=values + low, position=table[shifted])


def _without_broken_replicas(rows: _Rows) -> _Rows:
    """Drop replicas that lack operations in most steps, where no step is complete for all replicas."""
    replicas, steps = _axis(rows.dp_rank), _axis(rows.step)
    cell = replicas.position * steps.size + steps.position
    counts = np.bincount(cell, minlength=replicas.size * steps.size)
    complete = (counts == _usual_count(counts)).reshape(replicas.size, steps.size)
    kept = complete.mean(axis=1) >= MIN_COMPLETE_STEPS
    if complete.all(axis=0).any() or kept.all() or not kept.any():
        return rows
    return rows.take(kept[replicas.position])


def _usual_count(counts: Integers) -> int:
    return int(np.bincount(counts[counts > 0]).argmax())


def _layout(rows: _Rows, kinds: Sequence[str]) -> _Layout:
    """Return where each row goes. The operations are those of one replica in one step, the model."""
    replicas, stages, steps = _axis(rows.dp_rank), _axis(rows.stage), _axis(rows.step)
    seq = _axis(rows.seq_id)
    name = (rows.kind * seq.size + seq.position) * stages.size + stages.position
    model = _model_rows(replicas, steps)
    model = model[np.unique(name[model], return_index=True)[1]]
    op_of_name = np.full(int(name.max()) + 1, -1, np.int64)
    op_of_name[name[model]] = np.arange(model.size)
    ops = _ops(rows.take(model), kinds)
    return _Layout(ops=ops, op=op_of_name[name], replicas=replicas, stages=stages, steps=steps)


def _model_rows(replicas: _Axis, steps: _Axis) -> Integers:
    """Return the rows of the model: the first replica and step with the usual number of operations.

    A step in which all replicas have that number is preferred.
    """
    cell = replicas.position * steps.size + steps.position
    counts = np.bincount(cell, minlength=replicas.size * steps.size)
    usual = _usual_count(counts)
    complete = np.flatnonzero((counts.reshape(replicas.size, steps.size) == usual).all(axis=0))
    first = int(complete[0]) if complete.size else int(np.flatnonzero(counts == usual)[0])
    return np.flatnonzero(cell == first)


def _ops(model: _Rows, kinds: Sequence[str]) -> tuple[Op, ...]:
    return tuple(
        Op(
            index=i,
            kind=kinds[int(model.kind[i])],
            seq=int(model.seq_id[i]),
            stage=int(model.stage[i]),
            start=float(model.start_ts[i]),
            end=float(model.start_ts[i]) + float(model.duration[i]),
            chunk=int(model.mc[i]),
            model_chunk=int(model.gmc[i]),
        )
        for i in range(model.size)
    )


def _ranks(rank: Integers, layout: _Layout) -> Integers:
    """Return the global rank of each worker [replica, stage], its position where no rank is recorded."""
    replicas, stages = layout.replicas, layout.stages
    table = np.arange(replicas.size * stages.size, dtype=np.int64)
    position = replicas.position * stages.size + stages.position
    known = rank >= 0
    table[position[known]] = rank[known]
    return table.reshape(replicas.size, stages.size)


# -- times -----------------------------------------------------------------------------------------------


def _work(waves: Sequence[Wave], start: Floats, end: Floats, duration: Floats) -> Floats:
    """Return the duration of compute, and of a transfer the time since its last member had arrived."""
    work = duration.astype(np.float64)
    for wave in waves:
        if not wave.communication:
            continue
        members = list(wave.members)
        together = start[members].max(axis=0)
        if wave.replicas:
            together = together.max(axis=0, keepdims=True)
        transfer = end[members] - together
        work[members] = np.where(transfer <= -MAX_CLOCK_ERROR_S, 0.0, transfer)
    return work


def _ideal(ops: Sequence[Op], work: Floats) -> Floats:
    """Return the ideal time of each operation: the mean of its kind for compute, the median for transfers."""
    ideal = np.zeros(len(ops))
    for kind in {op.kind for op in ops}:
        members = [op.index for op in ops if op.kind == kind]
        values = work[members].ravel()
        ideal[members] = np.median(values) if kind in COMMUNICATION else values.mean()
    return ideal
