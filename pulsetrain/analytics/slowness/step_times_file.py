"""Step times of all ranks from a CSV or Parquet file, as timings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.timings import Timings, from_matrices
from pulsetrain.core.errors import UsageError

Floats = NDArray[np.float64]

RANK_COLUMNS = ("rank", "worker")
STEP_COLUMNS = ("step", "iteration", "time")
TIME_COLUMNS = ("duration_ns", "duration_s", "duration", "batch_time", "batch_time_norm")
LARGEST = 2.0**62  # beyond any rank or step


def read(path: Path) -> Timings:
    """Timings from a file with one row for each rank and step, in any order.

    Columns: one of `RANK_COLUMNS`, one of `STEP_COLUMNS` and one of `TIME_COLUMNS`. The unit of time does not
    matter. Rows without a rank or step are left out. Where each rank has its own clock, so that few steps
    have the same number on two ranks, a rank's steps are numbered from 0.

    Raises `UsageError` where the file cannot be read or lacks a column.
    """
    table = _table(path)
    rank, step, time = (_column(table, names, path) for names in (RANK_COLUMNS, STEP_COLUMNS, TIME_COLUMNS))
    known = (np.abs(rank) < LARGEST) & (np.abs(step) < LARGEST)  # false for NaN
    rank, step, time = rank[known], step[known], time[known]
    ranks, column = np.unique(rank.astype(np.int64), return_inverse=True)
    steps, row = np.unique(step.astype(np.int64), return_inverse=True)
    if ranks.size * steps.size > 4 * max(rank.size, 1):
        row, steps = _positions(column, step), np.arange(np.bincount(column).max(initial=0))
    matrix = np.full((steps.size, ranks.size), np.nan)
    matrix[row, column] = time
    matrices = {"duration_ns": matrix, "checkpoint": np.zeros(matrix.shape)}
    return from_matrices(matrices, job=path.stem, steps=steps, ranks=ranks)


def _table(path: Path) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import csv

        return csv.read_csv(path)
    except OSError as error:
        raise UsageError(f"step times {path}: {error.strerror or error}") from error
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"step times {path}: neither CSV nor Parquet ({reason})") from error


def _column(table: pa.Table, names: Sequence[str], path: Path) -> Floats:
    """The first of these columns that the table has."""
    for name in names:
        if name in table.column_names:
            try:
                return np.asarray(table[name].to_numpy(), np.float64)
            except (TypeError, ValueError) as error:
                raise UsageError(f"step times {path}: column {name} is not numeric") from error
    raise UsageError(
        f"step times {path}: no column {' or '.join(names)}; it has {', '.join(table.column_names)}"
    )


def _positions(column: NDArray[np.int64], step: Floats) -> NDArray[np.int64]:
    """The position of each value among those of its own rank, by step."""
    order = np.lexsort((step, column))
    count = np.bincount(column)
    first = np.repeat(np.cumsum(count) - count, count)
    positions = np.empty(column.size, np.int64)
    positions[order] = np.arange(column.size) - first
    return positions
