"""Small files of the kernel are read whole, and a missing one is told."""

import pytest

from pulsetrain.collectors.machine.kernel_files import read_text


def test_a_file_is_read_whole_whatever_is_in_it(tmp_path):
    path = tmp_path / "stat"
    path.write_bytes(b"cpu \xff 1\n" * 10_000)
    assert read_text(path) == "cpu \ufffd 1\n" * 10_000


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nothing")
