"""Agents with real sockets and files: replicas, persistence, restore, and what an agent knows of them."""

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.header_page import NOWHERE
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.save_result import SaveResult
from pulsetrain.checkpoint.service import CheckpointServiceConfig
from pulsetrain.core.errors import AuthError, CheckpointError, ConfigError, WorldNeeded
from pulsetrain.protocol.messages import WorldNode
from pulsetrain.records.columns import Columns
from tests.checkpoint.trainers import content, save, wait_until

pytestmark = pytest.mark.integration


def test_each_save_is_in_own_memory_and_on_the_next_node(cluster):
    c = cluster(3, nproc=2)
    c.save(1)
    c.save(2)
    for rank in range(6):
        peer = c.names[(rank // 2 - 1) % 3]
        wait_until(lambda peer=peer, rank=rank: c.holds(peer, rank, 2, "peer"))
    assert c.holds("n0", 0, 2, "memory")
    assert c.holds("n0", 0, 1, "memory")


def test_a_promoted_standby_gets_the_lost_nodes_states_from_its_peer(cluster):
    c = cluster(3)
    standby = c.start("spare")
    c.save(5)
    expected = content(c.fds[1], 1, 5)
    wait_until(lambda: c.holds("n0", 1, 5, "peer"))
    c.services["n1"].close()
    c.set_world(["n0", "spare", "n2"], 1)
    fd = c.attach("spare", 1)
    assert standby.load(1, 5, "peer:n0") < 1e9
    assert content(fd, 1, 5) == expected
    # redundancy is restored without a further save
    wait_until(lambda: c.holds("n0", 1, 5, "peer"))


def test_ranks_that_moved_to_other_nodes_get_their_state_from_those_that_they_left(cluster):
    c = cluster(2)
    for name in ("spare0", "spare1"):
        c.start(name)
    c.save(5)
    expected = [content(c.fds[rank], rank, 5) for rank in range(2)]
    c.set_world(["spare0", "spare1"], 1, holders=["n0", "n1"])
    for rank in range(2):
        fd = c.attach(f"spare{rank}", rank)
        c.services[f"spare{rank}"].load(rank, 5, f"peer:n{rank}", saved_attempt=0)
        assert content(fd, rank, 5) == expected[rank]


def test_placement_across_groups_sends_each_rank_to_its_partners_node(cluster):
    c = cluster(4, nproc=2, placement="across", tp=2, pp=2, dp=2)
    c.save(1)
    for rank in range(8):
        partner = c.names[3 - rank // 2]  # another data-parallel replica and another pipeline stage
        wait_until(lambda partner=partner, rank=rank: c.holds(partner, rank, 1, "peer"))
    holders = {(n, r) for n in c.names for r in range(8) if c.holds(n, r, 1, "peer")}
    assert len(holders) == 8


def test_the_arena_shows_what_peers_hold_and_whether_to_wait_for_them(cluster):
    c = cluster(2, lag_steps=1)
    arena = ArenaReader(c.fds[0])
    assert arena.replicated_step == -1
    wait_until(lambda: arena.lag_steps == 1)
    c.save(4)
    wait_until(lambda: arena.replicated_step == 4)
    c.services["n1"].close()
    c.save(5)
    wait_until(lambda: arena.lag_steps == 0)  # nobody to wait for
    assert arena.replicated_step == 4


def test_nobody_waits_for_peers_or_storage_that_are_not_there(cluster):
    c = cluster(2)
    results = {rank: SaveResult(4, arena=ArenaWriter(fd)) for rank, fd in c.fds.items()}
    for rank, result in results.items():
        result.mark_published(save(c.fds[rank], rank, 4, world=2))
    assert results[0].wait_replicated(40) is True
    with pytest.raises(CheckpointError, match="this job has none"):
        results[0].wait_durable(40)
    c.set_world(["n0"], 1)  # the job shrinks to one node
    late = SaveResult(5, arena=ArenaWriter(c.fds[0]))
    late.mark_published(save(c.fds[0], 0, 5, world=1))
    assert late.wait_replicated(40) is False
    again = ArenaReader(c.attach("n0", 0))
    assert (again.replicated_step, again.durable_step) == (NOWHERE, NOWHERE)
    c.set_world(["n0", "n1"], 2)
    assert again.replicated_step == -1


def test_ranks_are_asked_to_save_every_step_until_they_start_anew(cluster):
    c = cluster(1, nproc=2)
    arenas = [ArenaReader(fd) for fd in c.fds.values()]
    assert not any(arena.is_wanted(5) for arena in arenas)
    c.services["n0"].save_from(5)
    assert [[arena.is_wanted(step) for step in (4, 5, 900)] for arena in arenas] == [[False, True, True]] * 2
    c.services["n0"].attach(0, c.fds[0])
    assert [arena.is_wanted(5) for arena in arenas] == [False, True]


def test_load_forgets_what_came_later_everywhere(cluster):
    c = cluster(2)
    c.save(1)
    c.save(2)
    wait_until(lambda: c.holds("n0", 1, 2, "peer") and c.holds("n1", 0, 2, "peer"))
    for rank in (0, 1):
        c.services[f"n{rank}"].load(rank, 1, "memory")
    assert all(h.step <= 1 for name in c.names for h in c.services[name].held())


def test_a_checkpoint_that_another_rank_saved_does_not_count(cluster):
    c = cluster(1)
    save(c.fds[0], 3, 1)
    assert c.services["n0"].held() == ()


@pytest.mark.parametrize(
    "bad",
    [
        *({"replicas": 0}, {"placement": "star"}, {"keep_last": 1}, {"poll_s": 0}, {"persist_every": -1}),
        *({"placement": "across"}, {"placement": "across", "tp": 4, "pp": 1, "dp": 1}, {"sending": "never"}),
        *({"chunk_bytes": 0}, {"lag_steps": -1}, {"profile_steps": -1}),
    ],
)
def test_configuration_is_checked(bad):
    with pytest.raises(ConfigError, match="checkpoint"):
        CheckpointServiceConfig(**bad)


def test_a_restarted_service_reads_what_storage_holds(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    c.services["n0"].close()
    c.start("n0")
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))


def test_records_follow_the_schema_and_name_each_stage(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: all(c.holds(n, 0, 1, "storage") for n in c.names) and c.holds("n1", 0, 1, "peer"))
    rows = []
    wait_until(
        lambda: (
            rows.extend(r for b in c.services["n0"].take_records(0, "checkpoints") for r in b.to_rows())
            or {"copy", "replicate", "persist", "commit"} <= {r["stage"] for r in rows}
        )
    )
    assert all(r["job"] == "j" and r["rank"] == 0 and r["step"] == 1 for r in rows)
    assert all(r["bytes"] > 0 and r["duration_ns"] > 0 for r in rows)


def test_a_late_replica_of_a_future_that_was_rolled_back_is_refused(cluster):
    c = cluster(2)
    c.save(4)
    wait_until(lambda: c.holds("n1", 0, 4, "peer"))
    c.set_world(c.names, 1)
    for rank in (0, 1):
        c.services[f"n{rank}"].load(rank, 4, "memory")
    save(c.fds[0], 0, 6, world=2, attempt=0)  # what a slow sender of the attempt before still has
    save(c.fds[1], 1, 5, world=2, attempt=1)
    wait_until(lambda: c.holds("n0", 1, 5, "peer"))
    assert not c.holds("n1", 0, 6, "peer")
    save(c.fds[0], 0, 5, world=2, attempt=1)
    wait_until(lambda: c.holds("n1", 0, 5, "peer"))


def test_the_agents_side_never_imports_torch():
    import subprocess
    import sys

    code = (
        "import sys, pulsetrain.checkpoint.service, pulsetrain.checkpoint.browse, "
        "pulsetrain.checkpoint.export; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_agents_with_different_tokens_know_each_other_by_the_key_of_their_job(cluster):
    c = cluster(2)
    c.config = CheckpointServiceConfig(token="of n2 alone", poll_s=0.005)
    c.start("n2")
    names = ["n0", "n1", "n2"]
    c.set_world(names, 1, key="of the job")
    c.attach("n2", 2)
    c.save(3)
    for rank, peer in ((0, "n2"), (1, "n0"), (2, "n1")):
        wait_until(lambda rank=rank, peer=peer: c.holds(peer, rank, 3, "peer"))
    with pytest.raises(AuthError):  # the token does not do any more
        PeerClient(address="127.0.0.1", port=c.services["n0"].peer_port, token="secret", job="j", node="n1")


def part_of(c, names, known):
    """The nodes `names`, of which only those in `known` have a name."""
    return tuple(
        WorldNode(
            node=name if name in known else "",
            node_rank=i,
            address="127.0.0.1",
            peer_port=c.services[name].peer_port,
            nproc=1,
        )
        for i, name in enumerate(names)
    )


def test_a_node_that_knows_its_neighbours_alone_sends_them_its_replicas(cluster):
    c = cluster(4)
    for i, name in enumerate(c.names):
        c.services[name].set_world(part_of(c, c.names, c.names[i // 2 * 2 :][:2]), i, 1)
    c.save(3)
    wait_until(lambda: c.holds("n2", 3, 3, "peer") and c.holds("n1", 0, 3, "peer"))


@pytest.mark.parametrize(
    "config", [{"placement": "ring", "replicas": 3}, {"placement": "across", "tp": 2, "pp": 2, "dp": 1}]
)
def test_a_node_whose_replicas_go_to_nodes_that_it_does_not_know_needs_the_world(cluster, config):
    c = cluster(4, **config)
    with pytest.raises(WorldNeeded):
        c.services["n0"].set_world(part_of(c, c.names, ["n0", "n1", "n3"]), 0, 1)
    c.services["n0"].set_world(part_of(c, c.names, c.names), 0, 1)


def test_a_state_that_no_known_node_has_may_be_with_one_that_is_not_known(cluster):
    c = cluster(4)
    c.save(5)
    wait_until(lambda: c.holds("n1", 0, 5, "peer"))
    names = ["n2", "n3", "n0", "n1"]
    c.services["n2"].set_world(part_of(c, names, ["n2", "n3"]), 0, 1)
    fd = c.attach("n2", 0)
    with pytest.raises(WorldNeeded):
        c.services["n2"].load(0, 5, "memory")
    c.services["n2"].set_world(part_of(c, names, names), 0, 1)
    c.services["n2"].load(0, 5, "memory")
    assert ArenaReader(fd).newest.step == 5


def test_collectives_are_not_gathered_where_there_are_no_peers(cluster):
    seen = []
    for nodes in (1, 2):
        service = cluster(nodes).services["n0"]
        service._schedule.observe = lambda rows, size: seen.append(rows)
        service.observe(Columns.from_rows("steps", []))
        assert len(seen) == nodes - 1
