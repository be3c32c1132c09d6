"""Slots grow each for itself, and what was announced and is not there is an error."""

import os
import resource

import pytest

from pulsetrain.checkpoint.memory.slot_memory import SlotMemory, slot_offset
from pulsetrain.checkpoint.memory.slots import PAGE
from pulsetrain.core.errors import CheckpointError, CorruptData, MemoryShort


@pytest.fixture
def fd():
    fd = os.memfd_create("slots")
    os.ftruncate(fd, PAGE)
    yield fd
    os.close(fd)


def test_a_slot_that_grows_keeps_its_bytes_and_moves_no_other(fd):
    memory = SlotMemory(fd)
    memory.grown(0, 100)[:5] = b"first"
    memory.grown(1, 100)[:6] = b"second"
    assert memory.grown(0, 3 * PAGE)[:5] == b"first"
    assert memory.grown(1, 100)[:6] == b"second"
    other = SlotMemory(fd)
    assert other.region(0, 5)[:5] == b"first"
    assert os.pread(fd, 6, slot_offset(1)) == b"second"


def test_a_slot_that_is_large_enough_is_not_mapped_again(fd):
    memory = SlotMemory(fd)
    region = memory.grown(0, 2 * PAGE)
    assert memory.grown(0, 100) is region
    assert memory.region(0, 2 * PAGE) is region
    assert memory.grown(0, 2 * PAGE + 1) is not region


def test_bytes_beyond_the_end_of_the_file_are_never_read(fd):
    with pytest.raises(CorruptData, match="arena slot 3: 100 bytes announced, file ends at 4096"):
        SlotMemory(fd).region(3, 100)


def test_populating_is_done_once_for_each_growth(fd):
    memory = SlotMemory(fd)
    memory.grown(2, 100)
    assert memory.unpopulated == {2}
    memory.populate(2)
    memory.populate(0)  # was never grown: nothing to do
    assert memory.unpopulated == frozenset()
    memory.grown(2, 5 * PAGE)
    assert memory.unpopulated == {2}


def test_a_slot_that_cannot_grow_is_an_error(fd):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="arena of 100 bytes: File too large"):
            SlotMemory(fd).grown(0, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_slot_that_was_too_large_takes_a_smaller_checkpoint(fd):
    memory = SlotMemory(fd, lambda: 5 * PAGE)
    with pytest.raises(MemoryShort):
        memory.grown(0, 9 * PAGE)
    memory.grown(0, 4 * PAGE)[:5] = b"first"
    memory.populate(0)
    assert os.fstat(fd).st_blocks * 512 == 4 * PAGE
