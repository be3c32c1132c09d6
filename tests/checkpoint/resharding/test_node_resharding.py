"""Ranks of another world get their parts from arenas, replicas, and storage, over real sockets."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.resharding import node_resharding
from pulsetrain.checkpoint.resharding.shard_sources import LocalSource
from pulsetrain.core.errors import CheckpointError, NotReshardable
from pulsetrain.protocol.messages import Start, WorldNode
from tests.checkpoint.cluster import Cluster
from tests.checkpoint.resharding.shards import ask, columns, layout_of, rows, save, wanted
from tests.checkpoint.trainers import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster():
    made = []

    def make(*args, **kwargs):
        made.append(Cluster(*args, share_equal=False, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def start(sources, *, step=5, world, copies=None, holders=()):
    return Start(
        id=1,
        job="j",
        attempt=1,
        node_rank=0,
        world=(),
        store_address="",
        store_port=0,
        restore_step=step,
        saved_attempt=0,
        saved_world=world,
        shards={str(rank): source for rank, source in sources.items()},
        copies={str(rank): (copies or {}).get(rank, rank + 1) for rank in sources},
        holders=holders,
    )


def all_ask(c, placed, layouts, world):
    """Every new rank asks at once, as ranks do."""
    with ThreadPoolExecutor(len(placed)) as pool:
        asked = [pool.submit(ask, c.fds[rank], layouts[rank], rank, 5, world=world) for rank in placed]
        return [one.result(timeout=60) for one in asked]


def test_four_shards_become_two_and_columns_come_out_of_rows(cluster):
    c = cluster(4)
    for rank in range(4):
        save(c.fds[rank], layout_of(rows(rank, 4)), rank, 5, world=4)
    holders = tuple(
        WorldNode(node=n, node_rank=-1, address="127.0.0.1", peer_port=c.services[n].peer_port, nproc=1)
        for n in ("n2", "n3")
    )
    c.set_world(["n0", "n1"], 1)
    plan = start({rank: f"peer:n{rank}" for rank in range(4)}, world=4, holders=holders)
    layouts = {rank: layout_of(columns(rank, 2)) for rank in (0, 1)}
    for rank in (0, 1):
        c.services[f"n{rank}"].reshard([rank], plan)
    assert all_ask(c, (0, 1), layouts, 2) == [wanted(layouts[0]), wanted(layouts[1])]
    [told] = [detail for kind, detail in c.events("n0") if kind == "resharded"]
    assert (told["from_ranks"], told["storage_bytes"]) == (4, 0)
    assert told["memory_bytes"] > 0
    assert told["peer_bytes"] < wanted_bytes(layouts[0])
    info = ArenaReader(c.fds[0]).find(0, 5)
    assert (info.world, info.attempt) == (2, 1)


def wanted_bytes(layout):
    return sum(entry.bytes for entry in layout.entries)


def test_a_replica_stands_in_for_a_lost_rank(cluster):
    c = cluster(2)
    for rank in (0, 1):
        save(c.fds[rank], layout_of(rows(rank, 2)), rank, 5, world=2)
    wait_until(lambda: c.holds("n0", 1, 5, "peer"))
    c.services["n1"].close()
    c.set_world(["n0"], 1)
    c.services["n0"].reshard([0], start({0: "peer:n0", 1: "peer:n0"}, world=2))
    layout = layout_of(rows(0, 1))
    assert all_ask(c, (0,), {0: layout}, 1) == [wanted(layout)]


def test_storage_gives_what_is_in_no_memory(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=5)
    for rank in (0, 1):
        save(c.fds[rank], layout_of(rows(rank, 2)), rank, 5, world=2, pinned=True)
    wait_until(lambda: c.holds("n0", 1, 5, "storage"))
    ArenaReader(c.fds[1]).forget_after(-1)
    c.set_world(["n0"], 1)
    c.services["n0"].reshard([0], start({0: "peer:n0", 1: "storage"}, world=2))
    layout = layout_of(rows(0, 1))
    assert all_ask(c, (0,), {0: layout}, 1) == [wanted(layout)]


def test_different_content_under_one_name_is_refused(cluster):
    c = cluster(2)
    for rank in (0, 1):
        save(c.fds[rank], layout_of(rows(rank, 2)), rank, 5, world=2, add=rank)
    c.set_world(["n0", "n1"], 1)
    with pytest.raises(NotReshardable, match=r"ranks 0 and 1 .* different content as model\.bias"):
        c.services["n0"].reshard([0], start({0: "peer:n0", 1: "peer:n1"}, world=2))


def test_a_holder_that_is_away_is_no_refusal_for_good(cluster):
    c = cluster(2)
    for rank in (0, 1):
        save(c.fds[rank], layout_of(rows(rank, 2)), rank, 5, world=2)
    c.set_world(["n0", "n1"], 1)
    c.services["n1"].close()
    with pytest.raises(CheckpointError, match="step 5 cannot be put together: rank 1") as error:
        c.services["n0"].reshard([0], start({0: "peer:n0", 1: "peer:n1"}, world=2))
    assert not isinstance(error.value, NotReshardable)


def test_a_rank_that_wants_what_nobody_has_is_told_so(cluster):
    c = cluster(1)
    names = ["model.matrix", "model.bias"]
    save(c.fds[0], layout_of(rows(0, 1), names), 0, 5, world=1)
    c.set_world(["n0"], 1)
    c.services["n0"].reshard([0], start({0: "peer:n0"}, world=1))
    with pytest.raises(NotReshardable, match="no rank has saved it"):
        ask(c.fds[0], layout_of(rows(0, 1)), 0, 5, world=1)
    assert "no rank has saved it" in c.services["n0"].not_reshardable(0)


def test_a_holder_that_goes_while_parts_are_filled_in_is_no_refusal_for_good(cluster):
    c = cluster(2)
    for rank in (0, 1):
        save(c.fds[rank], layout_of(rows(rank, 2)), rank, 5, world=2)
    c.set_world(["n0", "n1"], 1)
    c.services["n0"].reshard([0], start({0: "peer:n0", 1: "peer:n1"}, world=2))
    c.services["n1"].close()
    with pytest.raises(CheckpointError, match="rank 1"):
        ask(c.fds[0], layout_of(rows(0, 1)), 0, 5, world=1)
    assert len([kind for kind, _ in c.events("n0") if kind == "reshard_failed"]) == 3
    assert c.services["n0"].not_reshardable(0) == ""


def test_the_shards_of_ranks_that_moved_away_stay_until_something_newer_is_saved(cluster):
    c = cluster(1, nproc=2)
    service = c.services["n0"]
    for rank in (0, 1):
        save(c.fds[rank], layout_of(rows(rank, 2)), rank, 5, world=2)
    service.retire(1, os.dup(c.fds[1]))
    assert c.holds("n0", 1, 5, "memory")
    save(c.fds[0], layout_of(rows(0, 1)), 0, 6, world=1, attempt=1)
    assert not c.holds("n0", 1, 5, "memory")


def test_an_arena_is_given_back_to_its_rank(cluster):
    c = cluster(1)
    service = c.services["n0"]
    save(c.fds[0], layout_of(rows(0, 1)), 0, 5, world=1)
    given = os.dup(c.fds[0])
    service.retire(0, given)
    assert service.reclaim(0) == given
    os.close(given)
    assert service.reclaim(0) == -1


def test_what_a_slow_source_gives_after_the_end_reaches_no_slot(cluster, monkeypatch):
    c = cluster(1)
    save(c.fds[0], layout_of(rows(0, 1)), 0, 5, world=1)
    asked, answers = Event(), Event()

    def slow_part(source, key, entry, inside):
        asked.set()
        assert answers.wait(30)
        return part(source, key, entry, inside)

    part = LocalSource.part
    monkeypatch.setattr(LocalSource, "part", slow_part)
    monkeypatch.setattr(node_resharding, "END_WAIT_S", 0.01)
    c.set_world(["n0"], 1)
    c.services["n0"].reshard([0], start({0: "peer:n0"}, world=1))
    resharding = c.services["n0"]._resharding
    (filling,) = resharding._threads
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, c.fds[0], layout_of(rows(0, 1)), 0, 5, world=1, timeout_s=0.5)
        assert asked.wait(30)
        resharding.end()
        answers.set()
        filling.join(30)
        assert ArenaReader(c.fds[0]).filled_bytes == 0
        with pytest.raises(CheckpointError, match="has put nothing of step 5 together"):
            asking.result()
