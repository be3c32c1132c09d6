"""A step exists once its manifest is written, and only while everything it needs is there."""

import os
from dataclasses import replace
from threading import Event

import pytest

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.storage.backend import RateLimit, open_storage
from pulsetrain.checkpoint.storage.commit import Committer
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.checkpoint.storage.polling import Poller
from pulsetrain.checkpoint.storage.rank_files import RankWriter
from pulsetrain.core.errors import CheckpointError
from tests.checkpoint.trainers import arrays, save, wait_until

pytestmark = pytest.mark.integration


def test_retention_keeps_the_last_and_every_kth(cluster, tmp_path):
    c = cluster(1, storage=str(tmp_path), persist_every=5, keep_last=2, keep_every=20)
    for step in range(5, 55, 5):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    wait_until(lambda: [m.step for m in checkpoints.committed()] == [50, 45, 40, 20])
    for manifest in checkpoints.committed():
        assert checkpoints.verify(manifest) == []  # packs of removed steps that are still needed are there


def test_a_step_that_cannot_be_removed_is_an_event_and_the_others_go(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=10, keep_last=2)
    storage = c.services["n0"]._checkpoints.storage
    remove = storage.remove

    def of_another_user(path):
        if "step-000000000010" in path:
            raise PermissionError(13, "Permission denied", path)
        remove(path)

    monkeypatch.setattr(storage, "remove", of_another_user)
    for step in (10, 20, 30, 40):
        c.save(step)
        wait_until(lambda step=step: c.holds("n0", 0, step, "storage"))
    events = []
    wait_until(lambda: c.services["n0"]._checkpoints.steps() == [10, 30, 40])
    wait_until(lambda: events.extend(c.events("n0")) or ("checkpoints_removed", {"steps": [20]}) in events)
    refused = dict(events)["checkpoints_not_removed"]
    assert refused["steps"] == [10]
    assert "Permission denied" in refused["error"]
    assert "persist_failed" not in dict(events)  # all are committed


def test_a_save_that_is_late_does_not_replace_a_later_one_of_its_step(tmp_path):
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
    poller, events = Poller(0.01, Event()), CheckpointEvents(Origin(job="j", node="n0"))
    committer = Committer(checkpoints, poller, events, timeout_s=0.1)
    fd = create_arena()
    try:
        slots = [save(fd, 0, 10, edition=e, tensors=changing(e)) for e in (0, 1)]
        for slot in slots:
            writer = RankWriter(checkpoints, ArenaReader(fd), slot, rate_limit=RateLimit(0.0), poller=poller)
            writer.write([], 0.1)
        newest = committer.commit(slots[1])
        assert committer.commit(slots[0]) == newest == checkpoints.manifest(10)
        assert committer.await_commit(slots[0]) == newest  # other ranks do not wait for what is no more
        with pytest.raises(CheckpointError, match="not complete"):
            committer.await_commit(replace(slots[1], edition=2))
    finally:
        os.close(fd)


class RefusesOnce:
    """A storage that refuses the first call on each path."""

    def __init__(self, storage):
        self._storage, self._seen = storage, set()

    def _once(self, what, path, *rest):
        if (what, path) not in self._seen:
            self._seen.add((what, path))
            raise OSError(5, "EIO", path)
        return getattr(self._storage, what)(path, *rest)

    def list(self, path):
        return self._once("list", path)

    def read(self, path):
        return self._once("read", path)

    def put(self, path, chunks):
        return self._once("put", path, chunks)

    def __getattr__(self, name):
        return getattr(self._storage, name)


def test_a_storage_that_refuses_each_call_once_costs_no_save(tmp_path):
    storage = open_storage(str(tmp_path))
    checkpoints, again = Checkpoints(storage, "j"), Checkpoints(RefusesOnce(storage), "j")
    poller, events = Poller(0.01, Event()), CheckpointEvents(Origin(job="j", node="n0"))
    committer = Committer(again, poller, events, timeout_s=5.0)
    fd = create_arena()
    try:
        slot = save(fd, 0, 10, tensors=changing(1))
        writer = RankWriter(checkpoints, ArenaReader(fd), slot, rate_limit=RateLimit(0.0), poller=poller)
        writer.write([], 0.1)
        assert committer.commit(slot) == checkpoints.manifest(10)
        assert committer.await_commit(slot).step == 10
    finally:
        os.close(fd)


def test_ranks_that_saved_a_step_unequally_often_are_named(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path), persist_every=0, commit_timeout_s=0.3)
    c.save(10, durable=True)
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    assert save(c.fds[0], 0, 10, world=2, edition=1, durable=True)  # in a handler of rank 0 alone
    events = []
    wait_until(lambda: events.extend(c.events("n0")) or "persist_failed" in dict(events))
    error = dict(events)["persist_failed"]["error"]
    assert "of rank 1 another save of it is there; has every rank saved this step equally often" in error


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


def test_a_step_that_refers_to_a_removed_pack_is_not_committed(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    checkpoints = standby_that_knows_only_what_is_gone(c)
    monkeypatch.setattr(Checkpoints, "kept", lambda self, manifests: list(manifests))  # as if it went later
    c.save(50, attempt=1, tensors=changing(0))
    events = []
    wait_until(lambda: events.extend(c.events("late")) or "persist_failed" in [k for k, _ in events])
    assert "gone: step-000000000010/a0-rank-00000.pack" in dict(events)["persist_failed"]["error"]
    assert checkpoints.manifest(50) is None


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
