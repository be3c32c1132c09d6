"""Agents with real sockets and files: replicas, persistence, restore, and everything that may go wrong."""

import os

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.checkpoint.storage.backend import LocalStorage, open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.core.errors import AuthError, CheckpointError, ConfigError, Unavailable, Unrestorable
from tests.checkpoint.trainers import arrays, content, save, wait_until

pytestmark = pytest.mark.integration


def test_each_save_reaches_the_next_node_and_both_tiers_are_held(cluster):
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


def test_placement_across_groups_sends_each_rank_to_its_partners_node(cluster):
    c = cluster(4, nproc=2, placement="across", tp=2, pp=2, dp=2)
    c.save(1)
    for rank in range(8):
        partner = c.names[3 - rank // 2]  # another data-parallel replica and another pipeline stage
        wait_until(lambda partner=partner, rank=rank: c.holds(partner, rank, 1, "peer"))
    holders = {(n, r) for n in c.names for r in range(8) if c.holds(n, r, 1, "peer")}
    assert len(holders) == 8


def test_the_trainer_is_told_what_peers_hold_and_waits_where_asked(cluster):
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


def test_a_checkpoint_that_is_being_sent_is_not_written_over(cluster, monkeypatch):
    import threading

    c = cluster(2)
    gate, begun = threading.Event(), threading.Event()
    send = PeerClient._sendfile

    def slow(self, fd, offset, size):
        begun.set()
        gate.wait(40)
        send(self, fd, offset, size)

    monkeypatch.setattr(PeerClient, "_sendfile", slow)
    save(c.fds[0], 0, 1, world=2)
    assert begun.wait(40)
    for step in range(2, 12):  # more than there are slots
        assert save(c.fds[0], 0, step, world=2)
    gate.set()
    wait_until(lambda: c.holds("n1", 0, 1, "peer") or c.holds("n1", 0, 11, "peer"))
    wait_until(lambda: c.holds("n1", 0, 11, "peer"))
    events = [kind for kind, _ in c.events("n0")]
    assert "replica_peer_away" not in events


def test_load_forgets_what_came_later_everywhere(cluster):
    c = cluster(2)
    c.save(1)
    c.save(2)
    wait_until(lambda: c.holds("n0", 1, 2, "peer") and c.holds("n1", 0, 2, "peer"))
    for rank in (0, 1):
        c.services[f"n{rank}"].load(rank, 1, "memory")
    assert all(h.step <= 1 for name in c.names for h in c.services[name].held())


def test_a_peer_that_goes_away_costs_an_event_and_nothing_else(cluster):
    c = cluster(2)
    c.save(1)
    wait_until(lambda: c.holds("n1", 0, 1, "peer"))
    c.services["n1"].close()
    c.save(2)
    events = []
    wait_until(lambda: events.extend(c.events("n0")) or "replica_peer_away" in [k for k, _ in events])
    assert c.holds("n0", 0, 2, "memory")
    c.save(3)
    assert c.holds("n0", 0, 3, "memory")


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


def test_nothing_anywhere_is_an_error_that_names_every_source(cluster):
    c = cluster(2)
    with pytest.raises(CheckpointError, match=r"step 9 of rank 0 .*memory: .*peer:n1: .*storage: "):
        c.services["n0"].load(0, 9, "memory")
    with pytest.raises(CheckpointError, match="rank 7 is not attached"):
        c.services["n0"].load(7, 9, "memory")


def test_an_arena_of_another_rank_is_not_held_as_this_ranks(cluster):
    c = cluster(1)
    save(c.fds[0], 3, 1)
    assert c.services["n0"].held() == ()


def test_a_wrong_token_or_job_gets_nothing(cluster):
    c = cluster(1)
    port = c.services["n0"].peer_port
    for token, job in (("wrong", "j"), ("secret", "other"), ("", "j")):
        with pytest.raises(AuthError):
            PeerClient(address="127.0.0.1", port=port, token=token, job=job, node="x")


def test_a_port_in_use_is_said(cluster):
    c = cluster(1)
    taken = CheckpointServiceConfig(token="t", port=c.services["n0"].peer_port)
    with pytest.raises(Unavailable, match="checkpoint port"):
        CheckpointService(taken, job="j", node="x", address="127.0.0.1")


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


def test_every_k_steps_are_committed_and_restored_from_storage_alone(cluster, tmp_path):
    c = cluster(2, nproc=2, storage=str(tmp_path), persist_every=10)
    c.save(9)
    c.save(10)
    c.save(11)
    expected = {rank: content(fd, rank, 10) for rank, fd in c.fds.items()}
    wait_until(lambda: all(c.holds(n, r, 10, "storage") for n in c.names for r in range(4)))
    for rank, fd in c.fds.items():
        ArenaReader(fd).forget_after(-1)
        c.services[c.names[rank // 2]]._replicas.clear()
        c.services[c.names[rank // 2]].load(rank, 10, "storage")
        assert content(fd, rank, 10) == expected[rank]


def test_content_that_ranks_share_is_written_once_and_frozen_content_once_for_ever(cluster, tmp_path):
    c = cluster(2, nproc=2, storage=str(tmp_path), persist_every=10, replicas=1)
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    for step in (10, 20):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
        wait_until(lambda step=step: c.holds("n1", 3, step, "storage"))
    first, second = checkpoints.manifest(10), checkpoints.manifest(20)
    tensors = 4 * 4000  # bytes of one array
    assert (
        first.logical_bytes - first.unique_bytes >= 2 * 3 * 4000
    )  # `shared` and `frozen` on three more ranks
    assert first.written_bytes == first.unique_bytes
    assert second.written_bytes == second.unique_bytes - 4000  # `frozen` was there already
    assert second.unique_bytes >= 4 * tensors


def test_a_durable_save_followed_at_once_by_memory_saves_arrives(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=0)
    fd = c.fds[0]
    for trial in range(3):
        step = 1 + 10 * trial
        assert save(fd, 0, step, durable=True)
        for later in range(step + 1, step + 6):
            assert save(fd, 0, later)
        wait_until(lambda step=step: ArenaReader(fd).durable_step >= step)
        checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
        assert checkpoints.verify(checkpoints.manifest(step)) == []


def test_retention_keeps_the_last_and_every_kth(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=5, keep_last=2, keep_every=20)
    for step in range(5, 55, 5):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    wait_until(lambda: [m.step for m in checkpoints.committed()] == [50, 45, 40, 20])
    for manifest in checkpoints.committed():
        assert checkpoints.verify(manifest) == []  # packs of removed steps that are still needed are there


def changing(step):
    """A state of which nothing stays the same from one step to another."""
    return {name: array for name, array in arrays(0, step).items() if name != "frozen"}


def standby_that_knows_only_what_is_gone(c):
    """A standby that looked at storage when step 10 was there takes the rank over; step 10 is removed."""
    c.save(10, tensors=changing(0))
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    c.start("late")
    wait_until(lambda: c.holds("late", 0, 10, "storage"))
    for step in (20, 30, 40):
        c.save(step, tensors=changing(100))
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
    checkpoints = Checkpoints(open_storage(c.config.storage), "j")
    wait_until(lambda: [m.step for m in checkpoints.committed()] == [40, 30])
    c.services["n0"].detach(0)
    os.close(c.fds[0])
    c.set_world(["late"], 1)
    c.attach("late", 0)
    return checkpoints


def test_content_of_a_checkpoint_that_is_gone_is_written_again(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    checkpoints = standby_that_knows_only_what_is_gone(c)
    c.save(50, attempt=1, tensors=changing(0))
    wait_until(lambda: c.holds("late", 0, 50, "storage"))
    assert checkpoints.verify(checkpoints.manifest(50)) == []


def test_a_step_that_refers_to_what_is_gone_is_not_committed(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    checkpoints = standby_that_knows_only_what_is_gone(c)
    monkeypatch.setattr(Checkpoints, "kept", lambda self, manifests: list(manifests))  # as if it went later
    c.save(50, attempt=1, tensors=changing(0))
    events = []
    wait_until(lambda: events.extend(c.events("late")) or "persist_failed" in [k for k, _ in events])
    assert "gone: step-000000000010/a0-rank-00000.pack" in dict(events)["persist_failed"]["error"]
    assert checkpoints.manifest(50) is None


def test_a_storage_that_refuses_may_be_asked_again_and_a_pack_that_is_gone_may_not(
    cluster, tmp_path, monkeypatch
):
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


def test_a_rank_that_never_arrives_leaves_no_checkpoint(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=10, commit_timeout_s=0.2)
    save(c.fds[0], 0, 10, world=2)
    events = []
    # the tables of all ranks are waited for (5 s) before a rank writes all of its own
    wait_until(lambda: events.extend(c.events("n0")) or "persist_failed" in [k for k, _ in events])
    assert Checkpoints(open_storage(str(tmp_path)), "j").committed() == []


def test_storage_that_refuses_is_an_event_and_memory_goes_on(cluster, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    c = cluster(1, storage=str(blocked), persist_every=1)
    c.save(1)
    events = []
    wait_until(lambda: events.extend(c.events("n0")) or "persist_failed" in [k for k, _ in events])
    c.save(2)
    assert c.holds("n0", 0, 2, "memory")


def test_a_full_disk_is_an_event_and_leaves_the_last_committed_step(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    storage = c.services["n0"]._checkpoints.storage
    put = storage.put

    def full(path, chunks):
        if path.endswith(".pack"):
            raise OSError(28, "No space left on device")
        return put(path, chunks)

    monkeypatch.setattr(storage, "put", full)
    c.save(2)
    events = []
    wait_until(lambda: events.extend(c.events("n0")) or "persist_failed" in [k for k, _ in events])
    assert "No space left" in dict(events)["persist_failed"]["error"]
    assert [m.step for m in Checkpoints(open_storage(str(tmp_path)), "j").committed()] == [1]
    monkeypatch.undo()
    c.save(3)
    wait_until(lambda: c.holds("n0", 0, 3, "storage"))


def test_slow_storage_skips_periodic_steps_and_says_so(cluster, tmp_path, monkeypatch):
    import threading

    c = cluster(1, storage=str(tmp_path), persist_every=1)
    storage, gate = c.services["n0"]._checkpoints.storage, threading.Event()
    put = storage.put
    monkeypatch.setattr(storage, "put", lambda path, chunks: (gate.wait(50), put(path, chunks))[1])
    c.save(1)
    events = []
    wait_until(lambda: c.services["n0"]._persister.busy)
    for step in range(2, 8):
        assert save(c.fds[0], 0, step)
        wait_until(lambda step=step: len(pinned(c.fds[0])) <= 3)
    wait_until(lambda: events.extend(c.events("n0")) or "persist_skipped" in [k for k, _ in events])
    gate.set()
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    wait_until(lambda: c.holds("n0", 0, 7, "storage"))  # and then the newest, not what lay between


def pinned(fd: int) -> list[int]:
    """Steps that wait for the agent."""
    arena = ArenaReader(fd)
    return [i.step for i in arena.published() if i.pinned and not arena.taken(i)]


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
    with pytest.raises(CheckpointError, match="cannot be restored"):
        c.services["n0"].load(0, 1, "storage")
    assert ArenaReader(c.fds[0]).find(0, 1) is None
    assert Checkpoints(open_storage(str(tmp_path)), "j").verify(
        Checkpoints(open_storage(str(tmp_path)), "j").manifest(1)
    )


@pytest.mark.parametrize("cut", [0, 1, 0.5, -1])
def test_a_half_written_manifest_does_not_count(cluster, tmp_path, cut):
    c = cluster(1, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    (path,) = tmp_path.rglob("manifest.json")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut) if cut == 0.5 else cut])
    assert Checkpoints(open_storage(str(tmp_path)), "j").committed() == []
    c.services["n0"].close()
    again = c.start("n0")
    assert not [h for h in again.held() if h.tier == "storage"]


def test_a_restarted_keeper_knows_what_storage_holds(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    c.services["n0"].close()
    c.start("n0")
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))


def test_fsspec_storage_serves_as_well(cluster):
    c = cluster(1, storage="memory://checkpoints-test", persist_every=1)
    c.save(1)
    expected = content(c.fds[0], 0, 1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    ArenaReader(c.fds[0]).forget_after(-1)
    c.services["n0"].load(0, 1, "storage")
    assert content(c.fds[0], 0, 1) == expected


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
