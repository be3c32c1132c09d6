"""Files that are there as a whole or not at all."""

import os
import threading

import pytest

from pulsetrain.core.whole_file import whole_file, write_whole


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_what_was_there(tmp_path, before, failure):
    path = tmp_path / "out.json"
    if before is not None:
        path.write_bytes(before)

    def half():
        with whole_file(path) as file:
            file.write(b"half")
            file.flush()
            raise failure

    with pytest.raises(type(failure)):
        half()
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_an_old_file_is_replaced_and_keeps_its_mode(tmp_path):
    path = tmp_path / "out.json"
    path.write_bytes(b"old and longer")
    path.chmod(0o640)
    assert write_whole(path, b"new") == 3
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_in_place(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"new")
    reader.join()
    assert read == [b"new"]
    assert pipe.is_fifo()


def test_a_file_in_a_folder_that_cannot_be_written_is_written_in_place(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    inode = path.stat().st_ino
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write everywhere
    write_whole(path, b"new")
    assert (path.read_bytes(), path.stat().st_ino) == (b"new", inode)
