from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.records.batch import decode
from pulsetrain.records.columns import Columns
from pulsetrain.stream.spool import queue
from pulsetrain.stream.spool.queue import Spool, SpoolConfig
from tests.stream.rows import columns

SMALL = SpoolConfig(segment_bytes=1000)


def ids(entries):
    return [(b.source, b.record, b.first_row, b.rows) for b in (decode(e.data) for e in entries)]


def everything(spool):
    found = []
    while entries := spool.pending():
        found += entries
        spool.ack(entries[-1])
    return found


def test_what_is_appended_is_pending_in_order_until_it_is_acknowledged(tmp_path):
    spool = Spool(tmp_path, node="n0")
    for rows in (3, 1, 2):
        assert spool.append(columns("metrics", rows))
    first, second, third = spool.pending()
    assert [b[2:] for b in ids([first, second, third])] == [(0, 3), (3, 1), (4, 2)]
    assert ids(spool.pending()) == ids([first, second, third])
    spool.ack(second)
    assert ids(spool.pending()) == ids([third])
    assert spool.backlog == 1


def test_pending_gives_about_as_much_as_asked_for_and_at_least_one(tmp_path):
    spool = Spool(tmp_path)
    for _ in range(4):
        spool.append(columns("metrics", 10))
    size = len(spool.pending()[0].data)
    assert len(spool.pending(max_bytes=1)) == 1
    assert len(spool.pending(max_bytes=size + 1)) == 2


def test_a_reopened_spool_resumes_behind_the_last_acknowledged_entry(tmp_path):
    spool = Spool(tmp_path, config=SMALL)
    for i in range(9):
        spool.append(columns("metrics", 5, first=i))
    entries = spool.pending()
    spool.ack(entries[3])
    spool.close()
    again = Spool(tmp_path, config=SMALL)
    assert ids(again.pending()) == ids(entries[4:])
    assert again.source != spool.source
    assert not again.dropped


def test_acknowledged_segments_leave_the_disk(tmp_path):
    spool = Spool(tmp_path, config=SMALL)
    for i in range(12):
        spool.append(columns("metrics", 5, first=i))
    assert len(list(tmp_path.glob("*.seg"))) > 2
    everything(spool)
    assert len(list(tmp_path.glob("*.seg"))) == 1
    spool.close()
    assert Spool(tmp_path, config=SMALL).size_bytes == 0


def test_beyond_its_cap_a_spool_drops_counts_and_takes_again_when_room_returns(tmp_path):
    spool = Spool(tmp_path, config=SpoolConfig(max_bytes=8000, segment_bytes=2000))
    while spool.append(columns("metrics", 5)):
        pass
    assert not spool.append(columns("metrics", 7))
    assert spool.dropped == {"spool_full": 12}
    assert spool.size_bytes <= 8000
    stored = sum(e.rows for e in everything(spool))
    assert spool.append(columns("metrics", 5))
    assert ids(spool.pending())[0][2] == stored  # dropped rows use no numbers


def test_a_full_disk_is_counted_and_leaves_no_half_entry(tmp_path, monkeypatch):
    spool = Spool(tmp_path)
    spool.append(columns("metrics", 4))
    real = os.write
    monkeypatch.setattr("os.write", lambda fd, data: real(fd, data[: len(data) // 2]))
    assert not spool.append(columns("metrics", 6))
    monkeypatch.undo()
    assert spool.append(columns("metrics", 2))
    assert spool.dropped == {"disk_full": 6}
    spool.close()
    again = Spool(tmp_path)
    assert [b[2:] for b in ids(again.pending())] == [(0, 4), (4, 2)]
    assert not again.dropped


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_the_kernels_own_enospc_is_counted_and_survived(tmp_path, monkeypatch):
    spool = Spool(tmp_path)
    real = os.write
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("os.write", lambda _, data: real(full.fileno(), data))
        assert not spool.append(columns("metrics", 6))
    monkeypatch.undo()
    assert spool.append(columns("metrics", 6))
    assert spool.dropped == {"disk_full": 6}


@pytest.fixture
def synced(monkeypatch):
    """The numbers of the files and folders that were brought to the disk."""
    numbers = []
    monkeypatch.setattr(os, "fsync", lambda file: numbers.append(os.fstat(file).st_ino))
    return numbers


def test_a_sync_brings_full_segments_and_the_folder_to_the_disk_too(tmp_path, synced):
    spool = Spool(tmp_path, config=SpoolConfig(segment_bytes=1))
    for rows in (3, 1, 2):
        spool.append(columns("metrics", rows))
    assert synced == []
    spool.sync()
    assert sorted(synced) == sorted(path.stat().st_ino for path in (tmp_path, *tmp_path.glob("*.seg")))
    spool.sync()
    assert len(synced) == 4


def test_what_could_not_be_synced_is_synced_the_next_time(tmp_path, synced, monkeypatch):
    spool = Spool(tmp_path)
    spool.append(columns("metrics", 3))

    def too_many_files(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr(os, "open", too_many_files)
        spool.sync()
    assert synced == []
    spool.sync()
    assert len(synced) == 2


def test_what_is_delivered_before_a_sync_needs_none(tmp_path, synced):
    spool = Spool(tmp_path, config=SpoolConfig(segment_bytes=1))
    spool.append(columns("metrics", 3))
    spool.append(columns("metrics", 3))
    spool.ack(spool.pending()[0])
    spool.sync()
    assert sorted(synced) == sorted(path.stat().st_ino for path in (tmp_path, *tmp_path.glob("*.seg")))


def test_a_passing_read_error_costs_no_rows(tmp_path, monkeypatch):
    spool = Spool(tmp_path, config=SpoolConfig(segment_bytes=1))
    for rows in (3, 1, 2):
        spool.append(columns("metrics", rows))
    whole, real = spool.pending(), Path.open

    def too_many_files(path, *given):
        if path.stem >= f"{first_unreadable:012d}":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *given)

    monkeypatch.setattr(Path, "open", too_many_files)
    first_unreadable = whole[1].segment
    assert spool.pending() == whole[:1]
    first_unreadable = whole[0].segment
    with pytest.raises(OSError, match="Too many open files"):
        spool.pending()
    monkeypatch.undo()
    assert spool.pending() == whole
    assert not spool.dropped


def test_an_entry_that_can_never_be_read_is_given_up_after_a_while(tmp_path, monkeypatch):
    spool = Spool(tmp_path, config=SpoolConfig(segment_bytes=1))
    for rows in (3, 1):
        spool.append(columns("metrics", rows))
    whole, real = spool.pending(), Path.open

    def bad_sector(path, *given):
        if path.stem == f"{whole[0].segment:012d}":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *given)

    monkeypatch.setattr(Path, "open", bad_sector)
    with pytest.raises(OSError, match="Input/output error"):
        spool.pending()
    monkeypatch.setattr(queue, "UNREADABLE_S", 0.0)
    assert spool.pending() == whole[1:]
    assert spool.dropped == {"corrupt": 3}


def test_a_segment_that_is_gone_is_counted_and_blocks_nothing(tmp_path):
    spool = Spool(tmp_path, config=SpoolConfig(segment_bytes=1))
    for rows in (3, 1):
        spool.append(columns("metrics", rows))
    first, second = spool.pending()
    (tmp_path / f"{first.segment:012d}.seg").unlink()
    assert spool.pending() == [second]
    assert spool.dropped == {"corrupt": 3}


def test_a_batch_that_is_not_the_records_is_dropped_and_counted(tmp_path):
    spool = Spool(tmp_path)
    logs = columns("logs", 3)
    assert not spool.append(Columns("metrics", logs.num_rows, logs.columns))
    assert spool.dropped == {"schema": 3}


class HungDisk:
    """A call that does not return until it is told to."""

    def __init__(self, real):
        self.real, self.entered, self.answers = real, threading.Event(), threading.Event()

    def __call__(self, *given):
        self.entered.set()
        assert self.answers.wait(10)
        return self.real(*given)


@pytest.mark.parametrize(
    ("where", "call", "work"),
    [
        (os, "write", lambda spool, last: spool.append(columns("metrics", 5))),
        (Path, "open", lambda spool, last: spool.pending()),
        (Path, "unlink", lambda spool, last: spool.ack(last)),
    ],
    ids=["append", "pending", "ack"],
)
def test_a_disk_that_hangs_keeps_nobody_from_asking_what_is_spooled_and_lost(
    tmp_path, monkeypatch, where, call, work
):
    spool = Spool(tmp_path, config=SpoolConfig(max_bytes=8000, segment_bytes=1))
    spool.append(columns("metrics", 5))
    spool.append(columns("metrics", 5))
    logs = columns("logs", 3)
    spool.append(Columns("metrics", logs.num_rows, logs.columns))
    last = spool.pending()[-1]
    size_bytes = spool.size_bytes
    disk = HungDisk(getattr(where, call))
    monkeypatch.setattr(where, call, lambda *given, **_: disk(*given))
    worker = threading.Thread(target=work, args=(spool, last), daemon=True)
    worker.start()
    assert disk.entered.wait(10)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.extend((spool.dropped, spool.dropped_rows, spool.size_bytes)), daemon=True
    )
    asking.start()
    asking.join(1)
    in_time = list(answers)
    disk.answers.set()
    worker.join(10)
    assert in_time == [{"schema": 3}, 3, size_bytes]


def test_what_was_lost_when_it_was_asked_stays_as_it_was(tmp_path):
    spool = Spool(tmp_path)
    before = spool.dropped
    logs = columns("logs", 3)
    spool.append(Columns("metrics", logs.num_rows, logs.columns))
    assert (before, spool.dropped) == ({}, {"schema": 3})


def test_a_rejected_entry_is_kept_aside_and_counted(tmp_path):
    spool = Spool(tmp_path)
    spool.append(columns("metrics", 3))
    (entry,) = spool.pending()
    spool.reject(entry, "no such record")
    spool.ack(entry)
    assert spool.dropped == {"rejected": 3}
    assert [p.read_bytes() for p in (tmp_path / "rejected").iterdir()] == [entry.data]
    assert spool.pending() == []


def test_a_folder_in_use_is_refused_with_its_holder(tmp_path):
    spool = Spool(tmp_path)
    with pytest.raises(UsageError, match=f"{tmp_path} is in use by process {os.getpid()}"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"spool folder .*/file/spool"):
        Spool(tmp_path / "file" / "spool")


@given(
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    cut=st.floats(0, 1, exclude_max=True),
    victim=st.integers(0, 100),
)
def test_a_crash_at_any_byte_keeps_every_whole_entry_before_it(batches, cut, victim):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spool = Spool(folder, config=SpoolConfig(segment_bytes=1500))
        for rows in batches:
            spool.append(columns("metrics", rows))
        written = spool.pending()
        spool.close()
        segments = sorted(folder.glob("*.seg"))
        number = int(segments[victim % len(segments)].stem)
        keep = int(cut * segments[victim % len(segments)].stat().st_size)
        os.truncate(folder / f"{number:012d}.seg", keep)
        again = Spool(folder)
        whole = [e for e in written if e.segment != number or e.end <= keep]
        assert ids(again.pending()) == ids(whole)
        at_boundary = keep == 0 or any(e.segment == number and e.end == keep for e in written)
        assert again.dropped.get("torn_segments", 0) == (not at_boundary)
        assert again.append(columns("metrics", 1))
        assert len(everything(again)) == len(whole) + 1
        again.close()


@given(
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    at=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_one_damaged_byte_costs_one_entry_and_is_counted(batches, at, flip):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spool = Spool(folder)
        for rows in batches:
            spool.append(columns("metrics", rows))
        written = spool.pending()
        spool.close()
        (path,) = folder.glob("*.seg")
        data = bytearray(path.read_bytes())
        where = int(at * len(data))
        data[where] ^= flip
        path.write_bytes(data)
        hit = next(e for e in written if where < e.end)
        again = Spool(folder)
        assert ids(again.pending()) == ids([e for e in written if e is not hit])
        damage = again.dropped
        assert damage.get("corrupt", 0) in (0, hit.rows)
        assert damage.get("corrupt", 0) or damage.get("torn_segments") or damage.get("corrupt_regions")
        again.close()


class Model:
    """What a spool must do, as a list."""

    def __init__(self):
        self.queue = []
        self.next = 0

    def append(self, rows):
        self.queue.append((self.next, rows))
        self.next += rows


@given(st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["ack", "reopen"])), max_size=25))
def test_a_spool_is_a_queue_that_survives_reopening(actions):
    with tempfile.TemporaryDirectory() as name:
        spool, model, past = Spool(Path(name), config=SMALL), Model(), []
        for action in actions:
            if action == "reopen":
                spool.close()
                past, model = past + model.queue, Model()
                spool = Spool(Path(name), config=SMALL)
            elif action == "ack":
                if entries := spool.pending(max_bytes=1500):
                    spool.ack(entries[-1])
                    done = len(entries)
                    model.queue = model.queue[max(0, done - len(past)) :]
                    past = past[done:]
            else:
                spool.append(columns("metrics", action))
                model.append(action)
        assert [b[2:] for b in ids(everything(spool))] == past + model.queue
        spool.close()
