"""What a node's memory has of a sharded state."""

import os

import numpy as np
import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.memory.layout import decode
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.checkpoint.resharding import saved_shards
from pulsetrain.checkpoint.resharding.saved_shards import SavedKey, SavedShards, slices_of
from pulsetrain.checkpoint.resharding.shard_sources import StoredSource
from pulsetrain.core.errors import CheckpointError, CorruptData
from tests.checkpoint.resharding.shards import WHOLE, layout_of, rows, save
from tests.checkpoint.stored import commit_arrays

KEY = SavedKey(rank=0, step=5, attempt=0, world=2)


@pytest.fixture
def fd():
    fd = create_arena()
    save(fd, layout_of(rows(0, 2)), 0, 5, world=2)
    yield fd
    os.close(fd)


@pytest.fixture
def shards(fd):
    shards = SavedShards(Replicas())
    shards.attach(0, ArenaReader(fd))
    return shards


def test_only_the_elements_that_are_asked_for_are_given(shards):
    with shards.reading(KEY) as saved:
        data = saved.part(0, (slice(1, 3), slice(2, 4)))
    assert data == WHOLE["model.matrix"][1:3, 2:4].tobytes()


def test_a_layout_is_decoded_once_for_all_parts_and_again_where_it_changes(fd, shards, monkeypatch):
    decoded = []
    monkeypatch.setattr(saved_shards, "decode", lambda raw: (decoded.append(raw), decode(raw))[1])
    for _ in range(200):
        with shards.reading(KEY) as saved:
            saved.part(0, (slice(1, 2), slice(2, 4)))
    assert len(decoded) == 1
    ArenaWriter(fd).clear()
    save(fd, layout_of(rows(1, 2)), 0, 5, world=2)
    with shards.reading(KEY) as saved:
        assert saved.layout == layout_of(rows(1, 2))


def test_a_layout_in_storage_is_read_once_for_all_parts(tmp_path, monkeypatch):
    array = np.arange(6, dtype=np.float32)
    checkpoints = commit_arrays(tmp_path, {0: [(name, array, (), ()) for name in "abc"]})
    read, layout = [], checkpoints.layout
    monkeypatch.setattr(checkpoints, "layout", lambda *of: (read.append(of), layout(*of))[1])
    source, key = StoredSource(checkpoints), SavedKey(rank=0, step=1, attempt=0, world=1)
    parts = [source.part(key, number % 3, (slice(1, 3),)) for number in range(30)]
    assert (set(parts), len(read)) == ({array[1:3].tobytes()}, 1)
    assert source.head(key).decoded.entries[2].name == "c"
    assert len(source.digests(key, [0, 1])) == 2


def test_a_part_that_is_not_there_is_refused(shards):
    with shards.reading(KEY) as saved:
        with pytest.raises(CheckpointError, match="has no part"):
            saved.part(0, (slice(0, 9), slice(0, 1)))
        with pytest.raises(CheckpointError, match="tensor 7 of 3"):
            saved.part(7, ())
    with pytest.raises(CheckpointError, match="not a part of a tensor"):
        slices_of([["a", 1]])


@pytest.mark.parametrize("other", [{"rank": 1}, {"step": 6}, {"attempt": 1}, {"world": 4}])
def test_what_another_rank_step_attempt_or_world_has_saved_is_not_it(shards, other):
    with pytest.raises(CheckpointError, match="is not here"), shards.reading(SavedKey(**(vars(KEY) | other))):
        pass


def test_damaged_bytes_are_not_given(fd, shards):
    writer = ArenaWriter(fd)
    writer.view(writer.newest)[-1] ^= 1
    with pytest.raises(CorruptData, match="does not have its checksum"), shards.reading(KEY):
        pass


def test_bytes_that_are_overwritten_meanwhile_do_not_count(fd, shards):
    with pytest.raises(CorruptData, match="was overwritten"), shards.reading(KEY):
        ArenaWriter(fd).forget_after(-1)


def test_a_replica_is_read_like_an_arena(fd):
    arena, replicas = ArenaReader(fd), Replicas()
    snapshot = Snapshot.of(arena.newest)
    memory = replicas.buffer(snapshot)
    memory[: snapshot.total_bytes] = arena.view(arena.newest)
    replicas.put(snapshot, memory)
    shards = SavedShards(replicas)
    assert shards.digests(KEY, [0, 1])[0] != shards.digests(KEY, [1])[0]
    with shards.whole(0, 5, 0) as found:
        assert found is not None
        assert found[0] == snapshot


def test_an_arena_without_shards_is_closed_at_once():
    fd, shards = create_arena(), SavedShards(Replicas())
    shards.retire(0, fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_an_arena_that_was_kept_can_be_cleared(fd):
    shards, given = SavedShards(Replicas()), os.dup(fd)
    shards.retire(0, given)
    assert [info.step for info in shards.kept()] == [5]
    shards.clear()
    assert shards.kept() == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given)


def test_parts_of_a_scalar_are_given_whole(shards):
    with shards.reading(KEY) as saved:
        assert np.frombuffer(saved.part(2, ()), dtype=np.float32) == WHOLE["optimizer.state.matrix.step"]
