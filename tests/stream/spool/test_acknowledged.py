from __future__ import annotations

import pytest

from pulsetrain.stream.spool.acknowledged import read_acknowledged, save_acknowledged


def test_what_was_saved_last_is_read(tmp_path):
    for position in ((1, 90), (2, 10), (2**40, 2**50)):
        save_acknowledged(tmp_path, position)
        assert read_acknowledged(tmp_path) == position


def test_without_a_file_nothing_is_acknowledged(tmp_path):
    assert read_acknowledged(tmp_path) == (0, 0)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"\1" + b[1:], lambda b: b""]
)
def test_a_damaged_file_acknowledges_nothing(tmp_path, damage):
    save_acknowledged(tmp_path, (5, 6))
    path = tmp_path / "acked"
    path.write_bytes(damage(path.read_bytes()))
    assert read_acknowledged(tmp_path) == (0, 0)


def test_a_folder_that_takes_no_file_is_no_error(tmp_path):
    save_acknowledged(tmp_path / "missing", (1, 2))
    assert read_acknowledged(tmp_path / "missing") == (0, 0)
