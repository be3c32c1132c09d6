"""Files in memory that are written again and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsetrain.stream.store import scratch
from pulsetrain.stream.store.scratch import ScratchFiles


@pytest.fixture
def files():
    made = ScratchFiles()
    yield made
    made.close()


def test_a_file_holds_what_was_written_last(files):
    paths = []
    for content in (b"long content", b"short", b"", b"long again"):
        with files.written(lambda sink, content=content: sink.write(content)) as path:
            assert Path(path).read_bytes() == content
            paths.append(path)
    assert len(set(paths)) == 1


def test_files_in_use_at_one_time_are_different_ones(files):
    with files.written(lambda sink: sink.write(b"a")) as a, files.written(lambda sink: sink.write(b"b")) as b:
        assert (Path(a).read_bytes(), Path(b).read_bytes()) == (b"a", b"b")


def test_a_file_that_could_not_be_written_is_used_again(files):
    def fail(sink):
        sink.write(b"half")
        raise OSError("no")

    with pytest.raises(OSError, match="no"), files.written(fail):
        pass
    with files.written(lambda sink: sink.write(b"x")) as path:
        assert Path(path).read_bytes() == b"x"


def test_what_a_large_file_took_is_given_back(files, monkeypatch):
    monkeypatch.setattr(scratch, "_KEPT_BYTES", 4096)
    with files.written(lambda sink: sink.write(bytes(100_000))) as path:
        assert Path(path).stat().st_size == 100_000
    with files.written(lambda sink: None) as path:
        assert Path(path).stat().st_size == 0
        assert Path(path).stat().st_blocks * 512 <= 4096


def test_closing_leaves_no_file_open(files):
    before = len(os.listdir("/proc/self/fd"))
    with files.written(lambda sink: sink.write(b"a")), files.written(lambda sink: sink.write(b"b")):
        pass
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before
