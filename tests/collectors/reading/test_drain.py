"""Slots as rows of records: every batch has the record's schema, and open work is reported once a second."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace

import pytest

from pulsetrain.collectors.checkpoint_cell import CheckpointCell, write_cell
from pulsetrain.collectors.layout import SAVED_AT
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.records.encoding import decode, encode

SECOND = 1_000_000_000


def by_record(batches):
    return {batch.record: batch for batch in batches}


class Watched:
    def __init__(self) -> None:
        fd = create_ring(1024)
        self.writer, self.reader = RingWriter(fd), RingReader(fd)
        os.close(fd)
        self.handle = Handle(self.writer)
        self.offset = self.reader.status().utc_offset_ns
        self.drain = Drain(
            self.reader,
            job="j",
            attempt=2,
            node="n1",
            rank=5,
            local_rank=1,
            address="10.0.0.1",
            switch="s3",
        )

    @property
    def now(self) -> int:
        """UTC of the last thing recorded."""
        return self.reader.status().last_ns + self.offset

    def rows(self, now_ns: int, record: str) -> list[dict[str, object]]:
        batches = [batch for batch in self.drain.batches(now_ns) if batch.record == record]
        return [row for batch in batches for row in batch.to_rows()]


@pytest.fixture
def watched():
    return Watched()


def test_the_age_of_a_phase_does_not_follow_a_step_of_the_wall_clock(watched, monkeypatch):
    with watched.handle.phase("forward"):
        hour_ago, in_an_hour = time.time_ns() - 3600 * SECOND, time.time_ns() + 3600 * SECOND
        for wall_ns in (hour_ago, in_an_hour):
            monkeypatch.setattr(time, "time_ns", lambda wall_ns=wall_ns: wall_ns)
            status = watched.drain.status(1, "running", watched.drain.utc_ns)
            assert 0 < status.phase_age_ns < 60 * SECOND
            assert 0 < status.progress_age_ns < 60 * SECOND


def test_what_begins_after_a_step_of_the_wall_clock_is_told_in_the_new_time(watched, monkeypatch):
    real, shift = time.time_ns, -3600 * SECOND
    h = watched.handle
    with h.phase("forward"):
        (opened,) = watched.rows(watched.now + 2 * SECOND, "spans")
        monkeypatch.setattr(time, "time_ns", lambda: real() + shift)
        (again,) = watched.rows(watched.now + 4 * SECOND, "spans")
    h.step()
    with h.phase("forward"):
        pass
    h.step()
    batches = {batch.record: batch.to_rows() for batch in watched.drain.batches(watched.now)}
    closed, after = (row for row in batches["spans"] if row["phase"] == "forward")
    assert opened["open"]
    assert opened["start"] == again["start"] == closed["start"]
    assert again["duration_ns"] > 3 * SECOND
    assert after["start"] - closed["start"] == pytest.approx(shift, abs=60 * SECOND)
    before, later = batches["steps"]
    assert later["start"] - before["start"] == pytest.approx(shift, abs=60 * SECOND)


def test_every_batch_has_its_records_schema(watched):
    h = watched.handle
    h.set_coordinates({"tp": 1, "pp": 2})
    with h.phase("forward"):
        pass
    h.log(loss=float("nan"))
    h.step(tokens=3)
    h.phase("data").__enter__()
    batches = watched.drain.batches(watched.now + 2 * SECOND)
    assert [batch.record for batch in batches] == ["spans", "spans", "steps", "topology"]
    for batch in batches:
        _, sent = decode(encode(batch, source="s", first_row=0))
        assert sent.num_rows == batch.num_rows == 1


def test_a_span_row_says_who_where_and_when(watched):
    h = watched.handle
    h.resume(9)
    with h.phase("backward"), h.phase("clip", "compute"):
        pass
    row = watched.rows(watched.now, "spans")[0]
    expected = {
        "job": "j",
        "attempt": 2,
        "node": "n1",
        "rank": 5,
        "step": 9,
        "microbatch": -1,
        "phase": "clip",
    }
    expected |= {"category": "compute", "lane": "host", "group": "", "seq": -1, "bytes": 0, "open": False}
    assert {key: row[key] for key in expected} == expected
    assert row["parent"] == "backward"
    assert 0 <= watched.now - row["start"] < 10 * SECOND
    assert 0 <= row["duration_ns"] < SECOND


def test_nan_loss_stays_nan_and_a_missing_one_null(watched):
    watched.handle.log(loss=float("nan"))
    watched.handle.step()
    batch = by_record(watched.drain.batches(watched.now))["steps"]
    (loss,) = batch.column("loss").to_list()
    assert math.isnan(loss)
    assert batch.column("grad_norm").to_list() == [None]


def test_an_open_phase_is_reported_after_a_second_and_once_a_second(watched):
    watched.handle.phase("backward").__enter__()
    began = watched.now
    ages = [watched.rows(began + i * SECOND // 4, "spans") for i in range(13)]
    reported = [i for i, rows in enumerate(ages) if rows]
    assert reported == [4, 8, 12]
    assert ages[8][0]["open"]
    assert (ages[8][0]["phase"], ages[8][0]["duration_ns"]) == ("backward", 2 * SECOND)


def test_an_operation_in_flight_is_an_open_span_inside_its_phase(watched):
    ring, h = watched.writer, watched.handle
    h.phase("backward").__enter__()
    began = watched.now - watched.offset
    cell = ring.add_group(ring.name_group("mesh_tp:3"), (4, 5))
    ring.set_op(cell, ring.intern("all_reduce"), 17, 4096, began + 5, -1)
    rows = watched.rows(watched.now + 3 * SECOND, "spans")
    assert [(r["phase"], r["group"], r["seq"], r["bytes"], r["parent"]) for r in rows] == [
        ("backward", "", -1, 0, ""),
        ("all_reduce", "mesh_tp:3", 17, 4096, "backward"),
    ]


def test_coordinates_are_sent_once(watched):
    assert watched.rows(1, "topology") == []
    watched.handle.set_coordinates({"pp": 3})
    (row,) = watched.rows(7, "topology")
    assert (row["pp"], row["tp"], row["local_rank"], row["ip"], row["ts"]) == (3, 0, 1, "10.0.0.1", 7)
    assert row["switch"] == "s3"
    assert watched.rows(8, "topology") == []


def test_coordinates_that_change_are_sent_again(watched):
    watched.handle.infer_coordinates({"dp": 1})
    (first,) = watched.rows(7, "topology")
    watched.handle.infer_coordinates({"tp": 1})
    (second,) = watched.rows(8, "topology")
    assert [(row["tp"], row["dp"], row["ts"]) for row in (first, second)] == [(0, 1, 7), (1, 0, 8)]


def test_status_names_the_innermost_phase_and_the_operation(watched):
    ring, h = watched.writer, watched.handle
    before = watched.drain.status(77, "running", watched.now)
    assert (before.last_step, before.last_phase, before.groups) == (-1, "", ())
    h.step()
    h.phase("optimizer").__enter__()
    cell = ring.add_group(ring.name_group("world"), (0, 5))
    ring.set_op(cell, ring.intern("send"), 4, 10, watched.now - watched.offset, 0)
    status = watched.drain.status(77, "stopped", watched.now + 5 * SECOND)
    assert (status.rank, status.pid, status.state, status.last_step) == (5, 77, "stopped", 0)
    assert (status.last_phase, status.phase_age_ns) == ("optimizer", 5 * SECOND)
    assert status.progress > before.progress
    assert status.progress_age_ns == 5 * SECOND
    (group,) = status.groups
    assert (group.op, group.op_seq, group.peer, group.op_age_ns) == ("send", 4, 0, 5 * SECOND)


def test_progress_rises_with_everything_that_is_recorded(watched):
    seen = [watched.drain.status(1, "running", 0).progress]
    for _ in range(3):
        with watched.handle.phase("forward"):
            pass
        watched.drain.batches(watched.now)
        seen.append(watched.drain.status(1, "running", 0).progress)
    assert seen == sorted(set(seen))


def test_dictionary_columns_hold_every_name_once(watched):
    for _ in range(500):
        with watched.handle.phase("forward"):
            pass
    batch = by_record(watched.drain.batches(watched.now))["spans"]
    assert batch.num_rows == 500
    names = batch.column("phase").names
    assert "forward" in names
    assert len(names) == len(set(names))


def saved_cell(step, size, end_ns, files=1):
    return CheckpointCell(
        step=step, bytes=size, files=files, start_ns=1000, end_ns=end_ns, path="/c/x.pt", file_bytes=size,
        file_mtime_ns=3,
    )  # fmt: skip


def test_the_scripts_own_checkpoint_is_a_row_and_more_files_of_it_are_another(watched):
    for cell in (saved_cell(30, 100, 1500), saved_cell(30, 300, 1900, files=2)):
        write_cell(watched.writer.memory, SAVED_AT, cell)
        (row,) = watched.rows(watched.now, "checkpoints")
        assert (row["step"], row["stage"], row["tier"], row["rank"]) == (30, "write", "storage", 5)
        assert row["ts"] == cell.end_ns + watched.offset
        assert watched.rows(watched.now, "checkpoints") == []
    assert (row["bytes"], row["duration_ns"]) == (200, 400)


def test_a_checkpoint_that_was_renamed_is_one_row_and_has_its_new_name(watched):
    cell = saved_cell(30, 100, 1500)
    write_cell(watched.writer.memory, SAVED_AT, cell)
    assert len(watched.rows(watched.now, "checkpoints")) == 1
    write_cell(watched.writer.memory, SAVED_AT, replace(cell, path="/c/final.pt"))
    assert watched.rows(watched.now, "checkpoints") == []
    (own,) = watched.drain.status(1, "running", watched.now).saved
    assert own.path == "/c/final.pt"


def test_the_status_shows_what_the_script_saved_and_where_it_went_on(watched):
    assert watched.drain.status(1, "running", watched.now).saved == ()
    write_cell(watched.writer.memory, SAVED_AT, saved_cell(30, 100, 1500))
    watched.handle.resume(21)
    status = watched.drain.status(1, "running", watched.now)
    (own,) = status.saved
    assert (own.step, own.bytes, own.path, own.duration_ns) == (30, 100, "/c/x.pt", 500)
    assert own.written_ns == 1500 + watched.offset
    assert (status.resumed_step, status.loaded) == (20, ())


def test_the_description_is_told_when_it_changes_and_from_time_to_time(watched):
    told = [watched.drain.status(1, "running", watched.now).instrumentation for _ in range(3)]
    assert json.loads(told[0])["steps"] == "none"
    assert told[1:] == ["", ""]
    watched.handle.step()
    assert json.loads(watched.drain.status(1, "running", watched.now).instrumentation)["steps"] == "explicit"
    later = [watched.drain.status(1, "running", watched.now).instrumentation for _ in range(60)]
    assert sum(bool(text) for text in later) == 2


def test_a_drain_before_the_rank_has_started_leaves_its_times_right():
    fd = create_ring(1024)
    reader = RingReader(fd)
    drain = Drain(reader, job="j", attempt=0, node="n", rank=0, local_rank=0, address="", switch="")
    drain.batches(time.time_ns())
    handle = Handle(RingWriter(fd))
    os.close(fd)
    handle.step(1)
    with handle.phase("forward"):
        pass
    handle.step(2)
    batches = by_record(drain.batches(time.time_ns()))
    starts = [row["start"] for name in ("spans", "steps") for row in batches[name].to_rows()]
    assert starts
    assert all(abs(start - time.time_ns()) < 60 * SECOND for start in starts)
