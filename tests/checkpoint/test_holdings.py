"""What a heartbeat says that a node could restore."""

import os

import pytest

from pulsetrain.checkpoint import holdings
from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.storage.manifest import Manifest, Table
from pulsetrain.protocol.messages import Held
from tests.checkpoint.trainers import save


@pytest.fixture
def arena():
    fd = create_arena()
    yield fd
    os.close(fd)


def test_memory_tells_rank_step_world_and_attempt_in_order(arena):
    for step in (5, 6):
        save(arena, 1, step, world=4, attempt=2, replicated=True)
    said = holdings.in_memory("peer", ArenaReader(arena).published())
    fields = {"rank": 1, "tier": "peer", "world": 4, "attempt": 2, "replicated": True}
    assert said == [Held(step=5, **fields), Held(step=6, **fields)]


def test_storage_tells_each_rank_of_a_committed_step():
    tables = {
        rank: Table(rank=rank, layout_bytes=0, values_bytes=0, payload_bytes=0, segments=(), replicated=True)
        for rank in (1, 0)
    }
    manifest = Manifest(
        job="j", step=7, attempt=3, world=2, created_ns=0, written_bytes=0, tables=tables, blobs={}
    )
    fields = {"step": 7, "tier": "storage", "world": 2, "attempt": 3, "replicated": True}
    assert holdings.in_storage([manifest]) == [Held(rank=0, **fields), Held(rank=1, **fields)]
