"""Any rank's copy of a state that all have saved alike."""

import os
from dataclasses import replace

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.peers.any_replica import AnyReplica
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from tests.checkpoint.trainers import content, save


@pytest.fixture
def node():
    """Finds copies; an arena that it looks into, and its replicas."""
    fd, replicas = create_arena(), Replicas()
    anywhere = AnyReplica(replicas)
    anywhere.attach(0, ArenaReader(fd))
    yield anywhere, fd, replicas
    os.close(fd)


def found(anywhere, step, attempt=0):
    with anywhere.reading(step, attempt) as copy:
        return None if copy is None else (copy[0].rank, bytes(copy[1]))


def test_an_arena_gives_what_its_rank_has_saved(node):
    anywhere, fd, _ = node
    save(fd, 0, 5, replicated=True)
    assert found(anywhere, 5) == (0, content(fd, 0, 5))
    anywhere.detach(0)
    assert found(anywhere, 5) is None


def test_a_state_that_is_not_replicated_or_of_another_attempt_does_not_count(node):
    anywhere, fd, _ = node
    save(fd, 0, 5)
    save(fd, 0, 6, attempt=1, replicated=True)
    assert found(anywhere, 5) is None
    assert found(anywhere, 6) is None


def test_a_replica_of_another_nodes_rank_does_too(node):
    anywhere, fd, replicas = node
    save(fd, 3, 5, replicated=True)
    info, data = ArenaReader(fd).find(3, 5), content(fd, 3, 5)
    memory = replicas.buffer(Snapshot.of(info))
    memory[: len(data)] = data
    replicas.put(Snapshot.of(info), memory)
    ArenaReader(fd).forget_after(-1)
    assert found(anywhere, 5) == (3, data)


def test_the_trainer_overwrites_other_slots_while_one_is_read(node):
    anywhere, fd, _ = node
    save(fd, 0, 5, replicated=True)
    with anywhere.reading(5, 0) as copy:
        before = bytes(copy[1])
        for step in range(6, 20):
            save(fd, 0, step, replicated=True)
        assert bytes(copy[1]) == before


def test_of_two_replicas_of_a_step_the_one_of_the_attempt_is_given(node):
    anywhere, fd, replicas = node
    save(fd, 3, 5, replicated=True)
    first = replace(Snapshot.of(ArenaReader(fd).find(3, 5)), shard=1)
    data = content(fd, 3, 5)
    ArenaReader(fd).forget_after(-1)
    for snapshot in (first, replace(first, attempt=1, world=first.world + 1)):
        memory = replicas.buffer(snapshot)
        memory[: len(data)] = data
        replicas.put(snapshot, memory)
    for attempt in (0, 1):
        with anywhere.reading(5, attempt) as copy:
            assert copy[0].attempt == attempt
