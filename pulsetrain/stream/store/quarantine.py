"""Rows whose time cannot be true go to a table of their own, or each odd day would make a partition."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from pulsetrain.records.arrow import ArrowColumn
from pulsetrain.records.schema import RECORDS

EARLIEST_NS = 946_684_800 * 10**9
"""2000-01-01: what is older comes from a clock that was never set."""
AHEAD_NS = 86_400 * 10**9
"""How far a clock may be ahead of the hub's: one day."""

_COLUMNS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "record": pa.string(),
        "source": pa.string(),
        "first_row": pa.uint64(),
        "rows": pa.uint64(),
        "reason": pa.string(),
        "data": pa.string(),
    }
)
SCHEMA = pa.schema(_COLUMNS)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Successive rows of one source. `first_row` is the number of the first."""

    source: str
    first_row: int
    rows: pa.Table


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """Rows of one piece that are not stored with their record. `first_row` is that of the piece.

    `kept` are the numbers of the piece's other rows: (first, end) of each run.
    """

    record: str
    source: str
    first_row: int
    rows: pa.Table
    kept: tuple[tuple[int, int], ...] = ()
    reason: str = "time before 2000 or more than a day ahead"


def separate(record: str, pieces: Sequence[Piece], now_ns: int) -> tuple[list[pa.Table], list[Quarantined]]:
    """(rows to store, one table for each piece; rows for the quarantine). A row is stored if its time lies
    between 2000 and a day after `now_ns`."""
    tables = [piece.rows for piece in pieces]
    if not tables or _plausible(record, pa.concat_tables(tables), now_ns) is None:
        return tables, []
    kept, quarantined = [], []
    for piece in pieces:
        plausible = _plausible(record, piece.rows, now_ns)
        if plausible is None:
            kept.append(piece.rows)
            continue
        kept.append(piece.rows.filter(plausible))
        quarantined.append(
            Quarantined(
                record=record,
                source=piece.source,
                first_row=piece.first_row,
                rows=piece.rows.filter(pc.invert(plausible)),
                kept=_runs(plausible.to_pylist(), piece.first_row),
            )
        )
    return kept, quarantined


def _runs(wanted: Iterable[bool | None], first: int) -> tuple[tuple[int, int], ...]:
    """The runs of what is wanted, numbered from `first`."""
    runs = []
    for is_wanted, run in itertools.groupby(wanted):
        end = first + sum(1 for _ in run)
        if is_wanted:
            runs.append((first, end))
        first = end
    return tuple(runs)


def _plausible(record: str, rows: pa.Table, now_ns: int) -> ArrowColumn | None:
    """Which rows have a time that can be true. None if all have."""
    times: ArrowColumn = rows.column(RECORDS[record].time).cast(pa.int64())
    earliest, latest = pa.scalar(EARLIEST_NS), pa.scalar(now_ns + AHEAD_NS)
    plausible = cast(ArrowColumn, pc.and_(pc.greater_equal(times, earliest), pc.less_equal(times, latest)))
    return plausible if pc.all(plausible).as_py() is False else None


def table(quarantined: Sequence[Quarantined]) -> pa.Table:
    """Rows for the quarantine table. `data` is base64 of an Arrow IPC stream that holds them unchanged."""
    return pa.Table.from_pylist(
        [
            {
                "record": each.record,
                "source": each.source,
                "first_row": each.first_row,
                "rows": each.rows.num_rows,
                "reason": each.reason,
                "data": base64.b64encode(_ipc(each.rows)).decode(),
            }
            for each in quarantined
        ],
        schema=SCHEMA,
    )


def without_data(quarantined: pa.Table) -> pa.Table:
    """Rows of `table` without what they hold: the store does not take even that."""
    column = quarantined.column_names.index("data")
    return quarantined.set_column(column, "data", pa.array([""] * quarantined.num_rows, pa.string()))


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())
