"""One process at a time may use a folder, and who may not hears why."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.core.folder_lock import FolderLock


def test_a_folder_is_made_and_held_until_it_is_released(tmp_path):
    folder = tmp_path / "a" / "b"
    lock = FolderLock.take(folder, "spool")
    with pytest.raises(UsageError, match=rf"spool folder .*/a/b is in use by process {os.getpid()}"):
        FolderLock.take(folder, "spool")
    assert [stat.S_IMODE(made.stat().st_mode) for made in (folder, folder.parent)] == [0o700, 0o700]
    lock.release()
    lock.release()
    FolderLock.take(folder, "spool").release()


def test_the_lock_file_names_its_holder_and_nothing_of_an_earlier_one(tmp_path):
    (tmp_path / "pulsetrain.lock").write_text("123456789012\n")
    lock = FolderLock.take(tmp_path, "store")
    assert (tmp_path / "pulsetrain.lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_holder_that_left_no_process_number_is_unknown(tmp_path):
    lock = FolderLock.take(tmp_path, "store")
    (tmp_path / "pulsetrain.lock").write_text("")
    with pytest.raises(UsageError, match="in use by process unknown"):
        FolderLock.take(tmp_path, "store")
    lock.release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"store folder .*/file/db: Not a directory"):
        FolderLock.take(tmp_path / "file" / "db", "store")


def test_a_full_disk_does_not_keep_the_lock_from_being_taken(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = FolderLock.take(tmp_path, "spool")
    with pytest.raises(UsageError, match="in use"):
        FolderLock.take(tmp_path, "spool")
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_because_nobody_could_be_kept_out(
    tmp_path, monkeypatch, number
):
    files = []

    def no_locks(file, _):
        files.append(file)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UsageError, match=rf"store folder {tmp_path} cannot be locked: {os.strerror(number)}"):
        FolderLock.take(tmp_path, "store")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(files[0])
