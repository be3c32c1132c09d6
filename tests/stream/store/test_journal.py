"""A group in the journal is whole or not there, and stays until it is forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.stream.store.insert_group import RowRange, encode_group
from pulsetrain.stream.store.journal import Journal
from tests.stream.rows import table


def group(token, rows=2):
    return encode_group("steps", token, [RowRange(source="s", first=0, end=rows)], table("steps", rows))


def test_what_is_written_is_read_by_the_next_journal_until_it_is_forgotten(tmp_path):
    journal = Journal(tmp_path / "a" / "journal")
    first, second = group("one"), group("two", rows=3)
    journal.write(first)
    journal.write(second)
    journal.write(first)
    assert sorted(g.token for g in Journal(tmp_path / "a" / "journal").read_all()) == ["one", "two"]
    journal.forget("one")
    journal.forget("one")
    assert Journal(tmp_path / "a" / "journal").read_all() == [second]


def test_groups_are_read_oldest_first(tmp_path):
    journal = Journal(tmp_path)
    for token, age_s in (("b", 30), ("c", 20), ("a", 10)):
        journal.write(group(token))
        os.utime(tmp_path / f"{token}.arrow", (1e9 - age_s, 1e9 - age_s))
    assert [g.token for g in journal.read_all()] == ["b", "c", "a"]


def test_a_half_written_group_is_deleted_and_a_damaged_one_is_left_for_a_person(tmp_path):
    journal = Journal(tmp_path)
    (tmp_path / "abc.part").write_bytes(b"half")
    (tmp_path / "abd.arrow").write_bytes(b"not arrow")
    journal.write(group("good"))
    assert [g.token for g in journal.read_all()] == ["good"]
    assert not (tmp_path / "abc.part").exists()
    assert (tmp_path / "abd.arrow").exists()


def test_a_group_that_the_disk_does_not_take_leaves_nothing_behind(tmp_path, monkeypatch):
    journal = Journal(tmp_path)

    def full(path, data):
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        journal.write(group("one"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"journal folder .*/file/x: Not a directory"):
        Journal(tmp_path / "file" / "x")
