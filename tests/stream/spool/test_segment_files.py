from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from pulsetrain.stream.spool.segment_files import EntryPosition, SegmentFiles


def files(folder, segment_bytes=100):
    return SegmentFiles(folder, segment_bytes, 0)


def reopened(folder, delivered=(0, 0)):
    again = files(folder)
    entries = [
        EntryPosition(number, position)
        for number, scan in again.scan(delivered)
        for position in scan.positions
    ]
    return again, entries


def test_an_entry_is_read_where_it_was_written(tmp_path):
    made = files(tmp_path)
    entries = [made.append(b"%d" % i * 10, rows=i) for i in range(5)]
    assert [made.read(entry) for entry in entries] == [b"%d" % i * 10 for i in range(5)]
    assert [entry.position.rows for entry in entries] == list(range(5))
    assert entries == sorted(entries, key=lambda entry: entry.end)
    made.close()


def test_a_segment_that_has_grown_past_its_size_is_followed_by_another(tmp_path):
    made = files(tmp_path, segment_bytes=1)
    assert [made.append(b"x", rows=1).segment for _ in range(3)] == [1, 2, 3]
    assert made.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    made.close()


def test_another_process_finds_what_is_not_delivered_and_writes_behind_it(tmp_path):
    made = files(tmp_path)
    entries = [made.append(b"x" * 50, rows=i) for i in range(5)]
    made.close()
    again, found = reopened(tmp_path, entries[2].end)
    assert found == entries[3:]
    new = again.append(b"new", rows=9)
    assert new.segment == entries[-1].segment + 1
    assert again.read(entries[4]) == b"x" * 50
    again.close()


def test_segments_without_entries_are_deleted_but_not_the_one_being_written(tmp_path):
    made = files(tmp_path, segment_bytes=1)
    for _ in range(3):
        last = made.append(b"x", rows=1)
    made.delete_before(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:012d}.seg" for n in (2, 3)]
    made.delete_before(None)
    assert made.read(last) == b"x"
    made.close()
    made.delete_before(None)
    assert list(tmp_path.iterdir()) == []
    assert made.size_bytes == 0


def test_a_disk_that_takes_half_an_entry_keeps_nothing_of_it(tmp_path, monkeypatch):
    made = files(tmp_path)
    first = made.append(b"first", rows=1)
    real = os.write
    monkeypatch.setattr("os.write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        made.append(b"second", rows=2)
    monkeypatch.undo()
    third = made.append(b"third", rows=3)
    assert (made.read(first), made.read(third)) == (b"first", b"third")
    made.close()
    assert reopened(tmp_path)[1] == [first, third]


def test_where_a_half_written_entry_cannot_be_cut_off_a_new_segment_begins(tmp_path, monkeypatch):
    made = files(tmp_path)
    first = made.append(b"first", rows=1)
    real = os.write
    monkeypatch.setattr("os.write", lambda fd, data: real(fd, data[: len(data) // 2]))
    monkeypatch.setattr("os.ftruncate", lambda fd, size: os.close(10**6))
    with pytest.raises(OSError, match="No space left"):
        made.append(b"second", rows=2)
    monkeypatch.undo()
    third = made.append(b"third", rows=3)
    made.close()
    assert third.segment == first.segment + 1
    assert reopened(tmp_path)[1] == [first, third]


def test_a_damaged_or_missing_entry_is_none(tmp_path):
    made = files(tmp_path)
    entry = made.append(b"payload", rows=1)
    made.close()
    path = made.path(entry.segment)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert made.read(entry) is None
    path.unlink()
    assert made.read(entry) is None


def test_a_segment_of_someone_else_is_left_alone_and_the_next_number_is_taken(tmp_path):
    made = files(tmp_path, segment_bytes=1)
    made.append(b"mine", rows=1)
    for number in (2, 3):
        made.path(number).write_bytes(b"theirs")
    entry = made.append(b"mine too", rows=1)
    assert (entry.segment, made.read(entry)) == (4, b"mine too")
    assert [made.path(number).read_bytes() for number in (2, 3)] == [b"theirs"] * 2
    made.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ESTALE])
def test_a_read_that_fails_for_now_is_an_error_and_may_be_tried_again(tmp_path, monkeypatch, number):
    made = files(tmp_path)
    entry = made.append(b"payload", rows=1)

    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        made.read(entry)
    monkeypatch.undo()
    assert made.read(entry) == b"payload"
    made.close()


def test_only_what_is_new_needs_a_sync(tmp_path):
    made = files(tmp_path)
    assert made.take_unsynced() == set()
    first = made.append(b"x", rows=1)
    assert made.take_unsynced() == {tmp_path, made.path(first.segment)}
    assert made.take_unsynced() == set()
    made.append(b"y", rows=1)
    assert made.take_unsynced() == {made.path(first.segment)}
    made.close()


def test_full_segments_need_a_sync_too_and_deleted_ones_do_not(tmp_path):
    made = files(tmp_path, segment_bytes=1)
    paths = [made.path(made.append(b"x", rows=1).segment) for _ in range(3)]
    made.delete_before(2)
    assert made.take_unsynced() == {tmp_path, *paths[1:]}
    made.close()
