"""Damage to files is small and follows from its seed."""

from __future__ import annotations

import time

import pytest

from pulsetrain.faults import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)))
    return path


@pytest.mark.parametrize("seed", range(20))
def test_one_bit_of_one_byte_turns_and_turns_back(path, seed):
    before = path.read_bytes()
    offset = files.flip_byte(path, seed)
    after = path.read_bytes()
    assert [i for i in range(256) if before[i] != after[i]] == [offset]
    assert (before[offset] ^ after[offset]).bit_count() == 1
    files.flip_byte(path, seed)
    assert path.read_bytes() == before


def test_a_cut_file_is_a_shorter_beginning(path):
    before = path.read_bytes()
    left = files.truncate(path, seed=3)
    assert left < 256
    assert path.read_bytes() == before[:left]


def test_an_aged_file_is_old(path):
    files.age(path, 3600)
    assert time.time() - path.stat().st_mtime > 3500
