"""Shared blocks are copied to their places, and it shows where a rank has overwritten one."""

import os

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.peers.shared_blocks import SharedBlocks
from tests.checkpoint.trainers import save


@pytest.fixture
def sharer():
    """A rank's arena with one checkpoint, and its info."""
    fd = create_arena()
    info = save(fd, 0, 1)
    arena = ArenaReader(fd)
    assert arena.begin_sharing(info)
    yield arena, info
    os.close(fd)


def test_each_block_goes_to_its_own_place_and_nothing_else_is_touched(sharer):
    arena, info = sharer
    source, target = bytes(arena.view(info)), bytearray(b"?" * info.total_bytes)
    assert SharedBlocks([(arena, info, [(0, 10), (4096, 50)])]).copy_into(memoryview(target))
    assert target[:10] == source[:10]
    assert target[4096:4146] == source[4096:4146]
    assert set(target[10:4096]) == set(target[4146:]) == {ord("?")}


def test_a_rank_that_overwrites_its_slot_is_noticed(sharer):
    arena, info = sharer
    shared = SharedBlocks([(arena, info, [(0, 10)])])
    assert shared.intact
    ArenaWriter(arena.fd).invalidate(info)
    assert not shared.intact
    assert not shared.copy_into(memoryview(bytearray(info.total_bytes)))


def test_the_slot_is_free_after_release(sharer):
    arena, info = sharer
    assert arena.shared(info)
    SharedBlocks([(arena, info, [(0, 10)])]).release()
    assert not arena.shared(info)
