"""What is written or sent is what was simulated, known again when it comes twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.records.batch import decode
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.simulate.write import CHUNK_ROWS, to_parquet, to_sink, to_transport
from pulsetrain.stream.spool.transport import Rejection

SPEC = FleetSpec(ranks=64, tp=2, pp=2, steps=20)


class Fake:
    def __init__(self, why=""):
        self.taken, self.why = [], why

    def send(self, entries):
        self.taken += entries
        return [Rejection(entry=entries[0], why=self.why)] if self.why else []

    def close(self):
        pass


def equal(came, made):
    """Whether two columns hold the same, null or NaN where the other does."""
    floating = pa.types.is_floating(made.type)
    return came.is_null().equals(made.is_null()) and np.array_equal(
        came.to_numpy(), made.to_numpy(), equal_nan=floating
    )


def sent(spec):
    transport = Fake()
    rows = to_transport(spec, transport, lambda _: None)
    return rows, transport.taken


def test_every_row_is_sent_and_the_ranges_of_each_source_follow_each_other():
    rows, entries = sent(SPEC)
    batches = [decode(entry.data) for entry in entries]
    for record in ("spans", "steps", "topology", "events"):
        made = pa.concat_tables([t for name, t in telemetry(SPEC) if name == record])
        came = pa.concat_tables([b.table for b in batches if b.record == record])
        assert came.column_names == made.column_names
        assert all(equal(came[name], made[name]) for name in made.column_names)
        assert rows[record] == len(made)
    ends = {}
    for batch in batches:
        assert batch.first_row == ends.get((batch.source, batch.record), 0)
        ends[(batch.source, batch.record)] = batch.first_row + batch.rows
    assert len({batch.source for batch in batches if batch.record == "spans"}) > 1


def test_the_same_specification_sends_the_same_bytes():
    assert [e.data for e in sent(SPEC)[1]] == [e.data for e in sent(SPEC)[1]]


def test_what_is_refused_is_an_error_with_the_reason():
    with pytest.raises(UsageError, match="too large"):
        to_transport(SPEC, Fake(why="too large"), lambda _: None)


def simulated(record, spec=SPEC):
    return pa.concat_tables([table for name, table in telemetry(spec) if name == record])


def test_files_hold_every_record_as_it_was_simulated(tmp_path):
    seen = []
    rows = to_parquet(SPEC, tmp_path / "out", seen.append)
    assert {path.stem for path in (tmp_path / "out").iterdir()} == set(rows)
    for record, count in rows.items():
        table = pq.read_table(tmp_path / "out" / f"{record}.parquet")
        assert table.num_rows == count == simulated(record).num_rows
    steps = pq.read_table(tmp_path / "out" / "steps.parquet")
    assert steps["duration_ns"].to_pylist() == simulated("steps")["duration_ns"].to_pylist()
    assert seen == sorted(seen)
    assert seen[-1] == rows.total()


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        to_parquet(SPEC, tmp_path / "file", lambda _: None)


class FakeStore:
    """Stores each range of a source once, as intake does."""

    def __init__(self):
        self.seen, self.tables = set(), {}

    def put(self, batch):
        key = (batch.source, batch.record, batch.first_row)
        if key in self.seen:
            return 0
        self.seen.add(key)
        self.tables.setdefault(batch.record, []).append(batch.table)
        return batch.rows


def test_a_sink_gets_every_row_once_however_often_a_specification_is_sent():
    store = FakeStore()
    rows = to_sink(SPEC, store, lambda _: None)
    assert rows["spans"] == simulated("spans").num_rows
    assert pa.concat_tables(store.tables["spans"])["start"].equals(simulated("spans")["start"])
    assert all(table.num_rows <= CHUNK_ROWS for tables in store.tables.values() for table in tables)
    assert not any(to_sink(SPEC, store, lambda _: None).values())
    other = FleetSpec(ranks=64, tp=2, pp=2, steps=20, seed=1)
    assert to_sink(other, store, lambda _: None)["steps"] == simulated("steps", other).num_rows
