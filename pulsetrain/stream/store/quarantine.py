"""Rows whose time cannot be true are set aside before they make a partition for every odd day."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsetrain.records.schema import RECORDS

EARLIEST_NS = 946_684_800 * 10**9
"""2000-01-01: what is older comes from a clock that was never set."""
AHEAD_NS = 86_400 * 10**9
"""How far a clock may be ahead of the hub's: one day."""

SCHEMA = pa.schema(
    [
        ("record", pa.string()),
        ("source", pa.string()),
        ("first_row", pa.uint64()),
        ("rows", pa.uint64()),
        ("reason", pa.string()),
        ("data", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Aside:
    """Rows of one batch that are not stored with their record."""

    record: str
    source: str
    first_row: int
    rows: pa.Table


def split(record: str, rows: pa.Table, now_ns: int) -> tuple[pa.Table, pa.Table]:
    """(`rows` whose time lies between 2000 and a day from now, the others)."""
    times = rows.column(RECORDS[record].time).cast(pa.int64())
    plausible = pc.and_(pc.greater_equal(times, EARLIEST_NS), pc.less_equal(times, now_ns + AHEAD_NS))
    if pc.all(plausible).as_py() is not False:
        return rows, rows.slice(0, 0)
    return rows.filter(plausible), rows.filter(pc.invert(plausible))


def table(asides: Sequence[Aside]) -> pa.Table:
    """Rows for the quarantine table; `data` is base64 of an Arrow IPC stream that holds them unchanged."""
    return pa.Table.from_pylist(
        [
            {
                "record": aside.record,
                "source": aside.source,
                "first_row": aside.first_row,
                "rows": aside.rows.num_rows,
                "reason": "time before 2000 or more than a day ahead",
                "data": base64.b64encode(_ipc(aside.rows)).decode(),
            }
            for aside in asides
        ],
        schema=SCHEMA,
    )


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())
