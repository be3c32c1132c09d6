"""A rank gets its checkpoint back from the nearest source that has it whole."""

import os

import pytest

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.memory.slots import next_history
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.checkpoint.restoring import Restorer, Sources
from pulsetrain.checkpoint.storage.backend import LocalStorage, open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.checkpoint.storage.shards import Shards
from pulsetrain.core.errors import CheckpointError, Unavailable, Unrestorable
from tests.checkpoint.trainers import content, save, wait_until


def no_peer(name: str):
    raise Unavailable(f"{name} is away")


@pytest.fixture
def node():
    """A restorer of rank 0 with its arena; it has replicas, and neither peers nor storage."""
    fd, replicas = create_arena(), Replicas()
    sources = Sources(
        node="here",
        replicas=replicas,
        connect=no_peer,
        peers=(),
        checkpoints=None,
        shards=Shards(None),
        home={0: "here"},
    )
    events = CheckpointEvents(Origin(job="j", node="here"))
    yield fd, sources, events
    os.close(fd)


def replica_of(fd: int, step: int, replicas: Replicas) -> bytes:
    """Keep what the arena has of the step as a replica; its bytes."""
    info = ArenaReader(fd).find(0, step)
    snapshot, data = Snapshot.of(info), content(fd, 0, step)
    memory = replicas.buffer(snapshot)
    memory[: len(data)] = data
    replicas.put(snapshot, memory)
    return data


def taken(events: CheckpointEvents) -> list[str]:
    return [r["kind"] for b in events.take("events") for r in b.to_rows()]


def test_own_memory_is_verified_and_later_steps_are_forgotten(node):
    fd, sources, events = node
    for step in (3, 4, 5):
        save(fd, 0, step)
    assert Restorer(sources, events).load(fd, 0, 4, "memory") > 0
    arena = ArenaReader(fd)
    assert [info.step for info in arena.published()] == [4, 3]
    assert arena.verified(arena.find(0, 4))
    assert taken(events) == []


def test_a_replica_that_the_node_had_before_the_rank_came_is_used(node):
    fd, sources, events = node
    save(fd, 0, 3)
    data = replica_of(fd, 3, sources.replicas)
    ArenaReader(fd).forget_after(-1)
    Restorer(sources, events).load(fd, 0, 3, "peer:here")
    assert content(fd, 0, 3) == data


def test_a_source_that_fails_is_an_event_and_the_next_one_is_tried(node):
    fd, sources, events = node
    save(fd, 0, 3)
    Restorer(sources, events).load(fd, 0, 3, "peer:away")
    assert taken(events) == ["restore_fallthrough"]


def test_where_a_source_did_not_answer_the_step_may_still_be_there(node):
    fd, sources, events = node
    with pytest.raises(CheckpointError, match=r"peer:away: away is away.*memory: .*storage: ") as error:
        Restorer(sources, events).load(fd, 0, 3, "peer:away")
    assert not isinstance(error.value, Unrestorable)


def test_where_every_source_answered_the_step_is_unrestorable(node):
    fd, sources, events = node
    with pytest.raises(Unrestorable) as error:
        Restorer(sources, events).load(fd, 0, 3, "memory")
    assert (error.value.rank, error.value.step) == (0, 3)


def test_what_was_saved_after_the_script_went_back_is_not_taken_for_the_same_step_before(node):
    fd, sources, events = node
    save(fd, 0, 3, edition=next_history(0))
    replica_of(fd, 3, sources.replicas)
    with pytest.raises(Unrestorable):
        Restorer(sources, events, saved_attempt=0, saved_history=0).load(fd, 0, 3, "memory")
    Restorer(sources, events, saved_attempt=0, saved_history=1).load(fd, 0, 3, "memory")


@pytest.mark.integration
def test_peers_and_storage_give_a_step_of_the_wanted_history_only(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=0)
    c.save(4, durable=True)
    wait_until(lambda: c.holds("n0", 0, 4, "storage") and c.holds("n1", 0, 4, "peer"))
    for source in ("peer:n1", "storage"):
        ArenaReader(c.fds[0]).forget_after(-1)
        c.services["n0"].load(0, 4, source, -1, 0, 0)
        ArenaReader(c.fds[0]).forget_after(-1)
        with pytest.raises(Unrestorable):
            c.services["n0"].load(0, 4, source, -1, 0, 1)


@pytest.mark.integration
def test_a_damaged_arena_falls_through_to_the_peer_with_an_event(cluster):
    c = cluster(2)
    c.save(4)
    expected = content(c.fds[0], 0, 4)
    wait_until(lambda: c.holds("n1", 0, 4, "peer"))
    info = ArenaReader(c.fds[0]).find(0, 4)
    os.pwrite(c.fds[0], b"\xde\xad", ArenaReader(c.fds[0]).file_offset(info) + info.total_bytes - 9)
    c.services["n0"].load(0, 4, "memory")
    assert content(c.fds[0], 0, 4) == expected
    ((_, detail),) = [e for e in c.events("n0") if e[0] == "restore_fallthrough"]
    assert detail["source"] == "memory"
    assert "checksum" in detail["error"]


@pytest.mark.integration
def test_nothing_anywhere_is_an_error_that_names_every_source(cluster):
    c = cluster(2)
    with pytest.raises(CheckpointError, match=r"step 9 of rank 0 .*memory: .*peer:n1: .*storage: "):
        c.services["n0"].load(0, 9, "memory")
    with pytest.raises(CheckpointError, match="rank 7 is not attached"):
        c.services["n0"].load(7, 9, "memory")


@pytest.mark.integration
def test_a_refused_read_may_be_retried_and_a_lost_pack_is_unrestorable(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    c.save(10)
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    ArenaReader(c.fds[0]).forget_after(-1)

    def refuse(self, path, offset, target):
        raise PermissionError(13, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "read_into", refuse)
        with pytest.raises(CheckpointError, match="refused") as refused:
            c.services["n0"].load(0, 10, "storage")
    assert not isinstance(refused.value, Unrestorable)
    (pack,) = tmp_path.glob("j/*10/*.pack")
    pack.unlink()
    with pytest.raises(Unrestorable) as gone:
        c.services["n0"].load(0, 10, "storage")
    assert (gone.value.rank, gone.value.step) == (0, 10)


@pytest.mark.integration
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_damaged_packs_are_never_restored(cluster, tmp_path, harm):
    c = cluster(1, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    (pack,) = tmp_path.rglob("*.pack")
    data = bytearray(pack.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    pack.write_bytes(data[: len(data) // 2] if harm == "truncate" else data)
    if harm == "remove":
        pack.unlink()
    ArenaReader(c.fds[0]).forget_after(-1)
    with pytest.raises(Unrestorable, match="cannot be restored"):
        c.services["n0"].load(0, 1, "storage")
    assert ArenaReader(c.fds[0]).find(0, 1) is None
    assert Checkpoints(open_storage(str(tmp_path)), "j").verify(
        Checkpoints(open_storage(str(tmp_path)), "j").manifest(1)
    )


@pytest.mark.integration
def test_fsspec_storage_serves_as_well(cluster):
    c = cluster(1, storage="memory://checkpoints-test", persist_every=1)
    c.save(1)
    expected = content(c.fds[0], 0, 1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    ArenaReader(c.fds[0]).forget_after(-1)
    c.services["n0"].load(0, 1, "storage")
    assert content(c.fds[0], 0, 1) == expected
