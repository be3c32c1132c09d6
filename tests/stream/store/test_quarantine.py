"""Rows of impossible times are set aside unchanged, and no others."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.stream.store import quarantine
from pulsetrain.stream.store.quarantine import AHEAD_NS, EARLIEST_NS, Piece, separate
from tests.stream.rows import DAY, table

TIMES = st.one_of(st.sampled_from([EARLIEST_NS - 1, EARLIEST_NS, DAY + AHEAD_NS, DAY + AHEAD_NS + 1]),
                  st.integers(-(2**63), 2**63 - 1))  # fmt: skip


def piece(times, source="n/1", first_row=0):
    return Piece(source=source, first_row=first_row, rows=table("steps", len(times), start=times))


@given(st.lists(st.lists(TIMES, min_size=1, max_size=4), max_size=4))
def test_every_row_is_either_kept_or_set_aside_by_its_time(groups):
    pieces = [piece(times, first_row=10 * i) for i, times in enumerate(groups)]
    kept, quarantined = separate("steps", pieces, DAY)
    times = [t for rows in kept for t in rows.column("start").cast(pa.int64()).to_pylist()]
    odd = [t for each in quarantined for t in each.rows.column("start").cast(pa.int64()).to_pylist()]
    assert times == [t for group in groups for t in group if EARLIEST_NS <= t <= DAY + AHEAD_NS]
    assert odd == [t for group in groups for t in group if not EARLIEST_NS <= t <= DAY + AHEAD_NS]


def test_what_is_set_aside_names_its_source_and_piece():
    pieces = [piece([DAY, 5], "a/1", 7), piece([DAY], "b/1", 3), piece([1, DAY, 2], "b/1", 9)]
    _, quarantined = separate("steps", pieces, DAY)
    assert [(q.source, q.first_row, q.rows.num_rows) for q in quarantined] == [("a/1", 7, 1), ("b/1", 9, 2)]


@pytest.mark.parametrize("record", ["spans", "logs", "findings"])
def test_the_time_of_each_record_counts(record):
    rows = table(record, 2)
    kept, quarantined = separate(record, [Piece(source="s", first_row=0, rows=rows)], DAY)
    assert (kept[0].num_rows, quarantined) == (2, [])


def test_a_row_of_the_quarantine_table_holds_the_rows_unchanged():
    _, quarantined = separate("steps", [piece([DAY, 5], "a/1", 7)], DAY)
    (row,) = quarantine.table(quarantined).to_pylist()
    assert (row["record"], row["source"], row["first_row"], row["rows"]) == ("steps", "a/1", 7, 1)
    assert "time" in row["reason"]
    rows = pa.ipc.open_stream(base64.b64decode(row["data"])).read_all()
    assert rows.to_pylist() == quarantined[0].rows.to_pylist()
