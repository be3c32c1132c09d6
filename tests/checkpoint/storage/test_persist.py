"""Agents write checkpoints to storage beside training, whatever storage does."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.slots import next_history
from pulsetrain.checkpoint.storage import manifest, persist
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.commit import PATIENT_READS
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.checkpoint.storage.rank_files import table_of
from pulsetrain.core.errors import CheckpointError
from pulsetrain.protocol.messages import NOT_READ
from tests.checkpoint.trainers import arrays, content, save, wait_until

pytestmark = pytest.mark.integration


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


def test_shared_content_is_written_once_and_unchanged_content_never_again(cluster, tmp_path):
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


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_step_that_is_saved_again_replaces_the_committed_one_and_leaves_nothing_broken(
    cluster, tmp_path, nodes
):
    c = cluster(nodes, storage=str(tmp_path), persist_every=10)
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    c.save(10)
    wait_until(lambda: all(c.holds(name, 0, 10, "storage") for name in c.names))
    for rank, fd in c.fds.items():
        changed = arrays(rank, 10) | {"w0": np.full(1000, 7 + rank, dtype=np.float32)}
        assert save(fd, rank, 10, world=nodes, edition=1, durable=True, tensors=changed)
    wait_until(lambda: checkpoints.manifest(10).edition == 1)
    again = checkpoints.manifest(10)
    assert checkpoints.verify(again) == []
    for rank, fd in c.fds.items():
        slot = ArenaReader(fd).find(rank, 10)
        assert again.tables[rank] == table_of(slot, ArenaReader(fd).view(slot))


def test_two_runs_of_one_job_do_not_mix_their_checkpoints(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "CLOCKS_DIFFER_NS", 0)
    runs = [cluster(1, storage=str(tmp_path), persist_every=0) for _ in range(2)]
    for number, one in enumerate(runs):
        one.set_world(["n0"], 0, key=f"key of hub {number}")
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    runs[0].save(10, durable=True, tensors=arrays(1, 0))
    wait_until(lambda: runs[0].holds("n0", 0, 10, "storage"))
    before = checkpoints.manifest(10)
    runs[1].save(10, durable=True, tensors=arrays(2, 0))
    events = []
    wait_until(lambda: events.extend(runs[1].events("n0")) or "persist_failed" in dict(events))
    assert "give --job another name" in dict(events)["persist_failed"]["error"]
    for step in (20, 30, 40):
        runs[1].save(step, durable=True, tensors=arrays(2, step))
        wait_until(lambda step=step: runs[1].holds("n0", 0, step, "storage"))
    wait_until(lambda: checkpoints.manifest(20) is None)  # its own older steps go
    assert checkpoints.manifest(10) == before
    assert checkpoints.verify(before) == []
    ArenaReader(runs[1].fds[0]).forget_after(-1)
    with pytest.raises(CheckpointError, match="of another run"):
        runs[1].services["n0"].load(0, 10, "storage")


def test_runs_of_hubs_that_share_a_token_do_not_mix_their_checkpoints(cluster, tmp_path):
    runs = [cluster(1, storage=str(tmp_path), persist_every=0) for _ in range(2)]
    for one, run in zip(runs, ("1a", "2b"), strict=True):
        one.set_world(["n0"], 0, key="key of both hubs", run=run)
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    runs[0].save(10, durable=True, tensors=arrays(1, 0))
    wait_until(lambda: runs[0].holds("n0", 0, 10, "storage"))
    before = checkpoints.manifest(10)
    runs[1].save(10, durable=True, tensors=arrays(2, 0))
    wait_until(lambda: len(list(tmp_path.rglob("a0-*.pack"))) == 2)
    assert (before.run, checkpoints.verify(before)) == ("1a", [])
    wait_until(lambda: runs[1].holds("n0", 0, 10, "storage"))
    assert checkpoints.verify(checkpoints.manifest(10)) == []


def test_what_was_there_before_a_run_began_is_its_own_whatever_clocks_say(cluster, tmp_path):
    earlier = cluster(1, storage=str(tmp_path), persist_every=0)
    earlier.set_world(["n0"], 0, key="key of an earlier hub")
    earlier.save(10, durable=True)
    wait_until(lambda: earlier.holds("n0", 0, 10, "storage"))
    (path,) = tmp_path.rglob("manifest.json")
    found = manifest.parse_manifest(path.read_bytes())
    ahead = replace(found, created_ns=found.created_ns + 30 * 10**9)  # a node whose clock was ahead
    path.write_bytes(ahead.encode())
    c = cluster(1, storage=str(tmp_path), persist_every=0)
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    c.set_world(["n0"], 1, key="key of this hub")
    assert c.services["n0"].load(0, 10, "storage")
    path.write_bytes(replace(ahead, created_ns=ahead.created_ns + 1).encode())  # since the run began
    ArenaReader(c.fds[0]).forget_after(-1)
    with pytest.raises(CheckpointError, match="of another run"):
        c.services["n0"].load(0, 10, "storage")


def persist_newest(c, timeout_s=20.0):
    """What each node's service answers when all are asked at once."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: c.services[name].persist_newest(timeout_s), c.names))


def test_at_the_end_the_newest_step_is_persisted_although_it_is_not_due(cluster, tmp_path):
    c = cluster(2, nproc=2, storage=str(tmp_path), persist_every=100)
    c.save(7)
    c.save(8)
    assert persist_newest(c) == [8, 8]
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    assert checkpoints.verify(checkpoints.manifest(8)) == []


def test_at_the_end_the_newest_step_that_all_ranks_have_is_persisted(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=0)
    c.save(7)
    assert save(c.fds[0], 0, 8, world=2)  # the other rank was ended before it had saved it
    assert persist_newest(c, 6.0)[1] == 7
    assert Checkpoints(open_storage(str(tmp_path)), "j").manifest(7) is not None


def test_at_the_end_an_agent_that_is_alone_does_not_wait_for_long(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=0)
    c.save(7)
    began = time.monotonic()
    assert c.services["n1"].persist_newest(10.0) == -1
    assert time.monotonic() - began < 5


def test_at_the_end_nothing_waits_where_nothing_was_saved_or_all_is_stored(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=10)
    assert persist_newest(c) == [-1, -1]
    c.save(10)
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    assert persist_newest(c) == [10, 10]


def test_a_job_that_finishes_waits_for_a_durable_save_that_is_still_written(cluster, tmp_path, monkeypatch):
    c = cluster(2, storage=str(tmp_path), persist_every=0)
    for service in c.services.values():
        put = service._checkpoints.storage.put
        slow = lambda path, chunks, put=put: (time.sleep(0.2), put(path, chunks))[1]  # noqa: E731
        monkeypatch.setattr(service._checkpoints.storage, "put", slow)
    c.save(7)
    c.save(8, durable=True)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda one: one.finish_persisting(), c.services.values())) == [True, True]
    assert [m.step for m in Checkpoints(open_storage(str(tmp_path)), "j").committed()] == [8]


def test_a_job_that_finishes_waits_no_longer_where_storage_hangs(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=0, commit_timeout_s=0.1)
    hangs = threading.Event()
    monkeypatch.setattr(c.services["n0"]._checkpoints.storage, "put", lambda path, chunks: hangs.wait(20))
    c.save(8, durable=True)
    assert not c.services["n0"].finish_persisting()
    hangs.set()


def test_a_job_that_finishes_does_not_wait_for_a_periodic_step_that_rank_0_has_not_saved(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(persist, "BEGIN_S", 0.1)
    c = cluster(2, storage=str(tmp_path), persist_every=10)
    assert save(c.fds[1], 1, 10, world=2)
    began = time.monotonic()
    assert c.services["n1"].finish_persisting()
    assert time.monotonic() - began < 5


def test_a_node_of_many_ranks_commits_a_step(cluster, tmp_path):
    c = cluster(1, nproc=40, storage=str(tmp_path), persist_every=0, commit_timeout_s=3.0)
    small = {"w": np.ones(4, dtype=np.float32)}
    c.save(10, durable=True, tensors=small)
    wait_until(lambda: c.holds("n0", 39, 10, "storage"), 20)
    assert Checkpoints(open_storage(str(tmp_path)), "j").manifest(10).world == 40


def test_a_rank_that_never_arrives_leaves_no_checkpoint(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=10, commit_timeout_s=0.2)
    save(c.fds[0], 0, 10, world=2)
    events = []
    # the tables of all ranks are waited for (5 s) before a rank writes all of its own
    wait_until(lambda: events.extend(c.events("n0")) or "persist_failed" in [k for k, _ in events])
    assert Checkpoints(open_storage(str(tmp_path)), "j").committed() == []


def test_storage_that_refuses_is_an_event_and_saves_go_on(cluster, tmp_path):
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


def test_a_durable_save_is_tried_again_where_storage_refuses_once(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(persist, "RETRY_S", 0.01)
    c = cluster(1, storage=str(tmp_path), persist_every=0)
    storage = c.services["n0"]._checkpoints.storage
    put, refusals = storage.put, iter(range(3))

    def unsteady(path, chunks):
        if path.endswith(".pack") and next(refusals, None) is not None:
            raise OSError(5, "Input/output error")
        return put(path, chunks)

    monkeypatch.setattr(storage, "put", unsteady)
    assert save(c.fds[0], 0, 7, durable=True)
    wait_until(lambda: c.holds("n0", 0, 7, "storage"))
    assert next(refusals, None) is None


def test_steps_that_are_not_committed_leave_no_files(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=10, commit_timeout_s=0.1)
    for service in c.services.values():
        service._persister._gather_s = 0.1
    for step in (10, 20, 30):  # the other rank never comes
        save(c.fds[0], 0, step, world=2)
        wait_until(lambda: not c.services["n0"]._persister._uncommitted)
    wait_until(lambda: "persist_failed" in [kind for kind, _ in c.events("n0")])
    wait_until(lambda: not c.services["n0"]._persister._uncommitted)
    wait_until(lambda: not list(tmp_path.rglob("*.pack")))
    wait_until(lambda: Checkpoints(open_storage(str(tmp_path)), "j").steps() == [])


def test_a_durable_save_that_rank_0_gives_up_does_not_keep_its_slot_for_ever(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=0, commit_timeout_s=0.05)
    assert save(c.fds[1], 1, 7, world=2, durable=True)  # rank 0 has lost it
    assert pinned(c.fds[1]) == [7]
    events = []
    wait_until(lambda: events.extend(c.events("n1")) or not pinned(c.fds[1]))
    wait_until(lambda: events.extend(c.events("n1")) or "persist_failed" in [k for k, _ in events])
    assert "rank 0" in dict(events)["persist_failed"]["error"]


def test_steps_that_were_removed_are_not_offered_any_more(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=10)
    c.save(10)
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    fewer = cluster(1, storage=str(tmp_path), persist_every=10, keep_last=2)
    wait_until(lambda: fewer.holds("n0", 1, 10, "storage"))
    for step in (20, 30, 40):
        fewer.save(step, attempt=1)
        wait_until(lambda step=step: fewer.holds("n0", 0, step, "storage"))
    wait_until(lambda: not fewer.holds("n0", 1, 10, "storage"))
    assert fewer.holds("n0", 0, 30, "storage")


def test_storage_that_cannot_be_read_at_first_is_read_again(cluster, tmp_path, monkeypatch):
    cluster(1, storage=str(tmp_path), persist_every=1).save(1)
    wait_until(lambda: list(tmp_path.rglob("manifest.json")))
    monkeypatch.setattr(persist, "READ_AGAIN_S", 0.01)
    there, steps = threading.Event(), Checkpoints.steps

    def late(self):
        if not there.is_set():
            raise OSError(116, "Stale file handle")
        return steps(self)

    monkeypatch.setattr(Checkpoints, "steps", late)
    again = cluster(1, storage=str(tmp_path), persist_every=1)
    events = []
    wait_until(lambda: events.extend(again.events("n0")) or "storage_unreadable" in [k for k, _ in events])
    assert again.services["n0"].stored_attempt == NOT_READ
    there.set()
    wait_until(lambda: again.holds("n0", 0, 1, "storage"))
    assert again.services["n0"].stored_attempt == 0


def test_one_checkpoint_that_storage_cannot_read_leaves_the_older_ones(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    for step in (10, 20):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
    monkeypatch.setattr(persist, "READ_AGAIN_S", 0.01)
    of_step = Checkpoints.manifest

    def bad_block(self, step):
        if step == 20:
            raise OSError(5, "Input/output error")
        return of_step(self, step)

    monkeypatch.setattr(Checkpoints, "manifest", bad_block)
    again = cluster(1, storage=str(tmp_path), persist_every=10)
    wait_until(lambda: again.holds("n0", 0, 10, "storage"))
    kinds = again.events("n0")
    assert [kind for kind, _ in kinds].count("storage_unreadable") == PATIENT_READS  # perhaps it is only away
    assert dict(kinds)["checkpoints_unreadable"]["steps"] == [20]
    assert again.services["n0"].load(0, 10, "storage")


def test_a_job_that_ran_with_fewer_ranks_meanwhile_still_finds_what_all_have_stored(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=10)
    for step in (10, 20):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 1, step, "storage"))
    fewer = cluster(1, storage=str(tmp_path), persist_every=1)
    wait_until(lambda: fewer.services["n0"].stored_attempt == 0)
    for step in (1, 2, 3):
        fewer.save(step, attempt=1)
        wait_until(lambda step=step: fewer.holds("n0", 0, step, "storage"))
    again = cluster(2, storage=str(tmp_path))
    wait_until(lambda: again.services["n0"].stored_attempt == 1)
    held = {(h.world, h.rank, h.step) for h in again.services["n0"].held()}
    assert held == {(2, 0, 20), (2, 1, 20), (2, 0, 10), (2, 1, 10), (1, 0, 3), (1, 0, 2)}


def test_what_was_stored_of_an_abandoned_history_does_not_count_as_durable(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    c.save(9)
    c.save(10)
    wait_until(lambda: ArenaReader(c.fds[0]).durable_step == 10)
    c.services["n0"].load(0, 9, "memory")
    assert ArenaReader(c.fds[0]).durable_step == 9


def test_what_a_script_saves_after_it_went_back_is_newest(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    for step in (10, 20):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
    c.save(15, durable=True, edition=next_history(0))
    wait_until(lambda: c.holds("n0", 0, 15, "storage"))
    newest = Checkpoints(open_storage(str(tmp_path)), "j").committed(newest=1)
    assert [m.step for m in newest] == [15]
    assert {h.step: h.history for h in c.services["n0"].held() if h.tier == "storage"}[15] == 1


def test_slow_storage_skips_periodic_steps_with_an_event(cluster, tmp_path, monkeypatch):
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
