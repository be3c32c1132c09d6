"""Agents with real sockets: content that the peer's ranks have is not sent, and replicas are whole."""

import os

import numpy as np
import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.peers import block_dedup, client, framing, incoming, sender
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.core.errors import Unavailable
from tests.checkpoint.cluster import Cluster
from tests.checkpoint.trainers import content, save, wait_until

pytestmark = pytest.mark.integration

OWN, SHARED = 1000, 100_000


@pytest.fixture
def sent(monkeypatch):
    """Bytes that went over the network as replicas."""
    sizes = []
    send = PeerClient._sendfile

    def counting(self, fd, offset, size):
        sizes.append(size)
        send(self, fd, offset, size)

    monkeypatch.setattr(PeerClient, "_sendfile", counting)
    return sizes


def state(rank: int, step: int) -> dict[str, np.ndarray]:
    """Ranks r and r + 2 are data-parallel replicas, but for a little of their own."""
    shared = np.arange(SHARED // 4, dtype=np.float32) + 1000 * step + 7 * (rank % 2)
    return {"shared": shared, "own": np.full(OWN // 4, rank, dtype=np.float32)}


def save_all(c: Cluster, step: int) -> None:
    for rank, fd in c.fds.items():
        assert save(fd, rank, step, world=len(c.fds), tensors=state(rank, step))


def replica(c: Cluster, rank: int, step: int) -> bytes | None:
    """What the peer of the rank's node would give back."""
    with c.services[c.names[1 - rank // 2]]._replicas.reading(rank, step) as found:
        return None if found is None else bytes(found[1])


def all_replicated(c: Cluster, step: int) -> bool:
    return all(c.holds(c.names[1 - rank // 2], rank, step, "peer") for rank in c.fds)


def test_data_parallel_replicas_on_each_others_nodes_are_not_sent(cluster, sent):
    c = cluster(2, nproc=2)
    for step in (1, 2, 3):
        save_all(c, step)
        wait_until(lambda step=step: all_replicated(c, step))
    assert sum(sent) < 3 * 4 * 20_000  # of 3 x 4 x 105,000
    shared = [detail for kind, detail in c.events("n0") if kind == "replica_shared"]
    assert sorted(d["peer"] for d in shared) == ["n1", "n1"]  # once for each rank
    assert all(d["sent_bytes"] < d["bytes"] / 2 for d in shared)


def test_spans_that_a_peer_missed_are_included_in_the_next_offer(cluster, sent, monkeypatch):
    monkeypatch.setattr(block_dedup, "_SAVE_WAIT_S", 30.0)  # a busy machine may come late
    c = cluster(2, nproc=2)
    for step in (
        1,
        2,
    ):  # at the first, the other rank may not have saved yet
        save_all(c, step)
        wait_until(lambda step=step: all_replicated(c, step))
    before = len(sent)
    assert before >= 4  # each rank's own part was asked for
    for step in (3, 4):
        save_all(c, step)
        wait_until(lambda step=step: all_replicated(c, step))
    assert len(sent) == before
    for rank, fd in c.fds.items():
        assert replica(c, rank, 4) == content(fd, rank, 4)


def frames_of_offers(monkeypatch) -> list[list[int]]:
    """The ranks in each frame that offers."""
    frames, send = [], client.send_frame

    def noting(sock, header, *bodies):
        if header.get("op") == "offer":
            frames.append([raw["rank"] for raw in header["of"]])
        send(sock, header, *bodies)

    monkeypatch.setattr(client, "send_frame", noting)
    return frames


def test_small_states_of_one_node_go_in_one_frame_and_large_ones_alone(cluster, monkeypatch):
    frames = frames_of_offers(monkeypatch)
    c = cluster(2, nproc=2, poll_s=0.5)  # all are saved between two looks
    save_all(c, 1)
    wait_until(lambda: all_replicated(c, 1))
    assert sorted(frames) == [[0, 1], [2, 3]]
    monkeypatch.setattr(sender, "SMALL_BYTES", 1000)
    save_all(c, 2)
    wait_until(lambda: all_replicated(c, 2))
    assert sorted(frames[2:]) == [[0], [1], [2], [3]]


def test_a_rank_that_never_saves_does_not_delay_others(cluster):
    c = cluster(2, nproc=2)
    step = 0

    def saved_often() -> bool:
        nonlocal step
        step += 1
        for rank in (0, 2):
            assert save(c.fds[rank], rank, step, world=4, tensors=state(rank, step))
        return any(s.rank == 0 and s.step > 1 for s in c.services["n1"]._replicas.list())

    wait_until(saved_often)


def test_one_refused_offer_of_a_frame_is_sent_whole_and_the_other_holds(cluster, monkeypatch):
    c = cluster(2, nproc=2, poll_s=0.5)
    agree = incoming.has_digests
    monkeypatch.setattr(
        incoming, "has_digests", lambda target, shot, *rest: shot.rank != 2 and agree(target, shot, *rest)
    )
    frames = frames_of_offers(monkeypatch)
    save_all(c, 1)
    wait_until(lambda: all_replicated(c, 1))
    assert [2, 3] in frames
    for rank, fd in c.fds.items():
        assert replica(c, rank, 1) == content(fd, rank, 1)


@pytest.mark.parametrize("offers", [3, [7], [{"rank": 0}]])
def test_a_peer_that_offers_nonsense_is_cut_off_and_others_are_served(cluster, offers):
    c = cluster(2, nproc=2)
    rude = c.services["n0"]._connect("n1")
    client.send_frame(rude._sock, {"op": "offer", "of": offers})
    with pytest.raises(Unavailable):
        framing.receive_frame(rude._sock)
    rude.close()
    save_all(c, 1)
    wait_until(lambda: all_replicated(c, 1))


@pytest.mark.parametrize("why", ["the setting is off", "the peer takes no offers"])
def test_everything_is_sent_where(cluster, sent, monkeypatch, why):
    if why == "the peer takes no offers":  # as one of an earlier version
        connect = PeerClient.__init__

        def plain(self, **options):
            connect(self, **options)
            self.accepts_offers = False

        monkeypatch.setattr(PeerClient, "__init__", plain)
    c = cluster(2, nproc=2, share_equal=why != "the setting is off")
    save_all(c, 1)
    wait_until(lambda: all_replicated(c, 1))
    assert sum(sent) == sum(ArenaReader(fd).published()[0].total_bytes for fd in c.fds.values())


def test_a_node_that_is_lost_gets_its_ranks_back_from_what_was_shared(cluster, sent):
    c = cluster(2, nproc=2)
    for step in (1, 2):
        save_all(c, step)
        wait_until(lambda step=step: all_replicated(c, step))
    assert sum(sent) < 2 * 4 * 20_000
    expected = {rank: content(c.fds[rank], rank, 2) for rank in (2, 3)}
    for rank in (0, 1):  # the ranks that share go on and write over what was copied from them
        for step in range(3, 12):
            assert save(c.fds[rank], rank, step, world=4, tensors=state(rank, step))
    c.services["n1"].close()
    spare = c.start("spare")
    c.set_world(["n0", "spare"], 1)
    for rank, bytes_then in expected.items():
        old = c.fds[rank]
        fd = c.attach("spare", rank)
        os.close(old)
        spare.load(rank, 2, "peer:n0")
        assert content(fd, rank, 2) == bytes_then


def test_sent_bytes_without_their_digest_damage_no_replica(cluster, monkeypatch):
    c = cluster(2, nproc=2)
    receive, flipped = framing.receive_into, []

    def damaged(sock, target):
        checksum = receive(sock, target)
        if not flipped and len(target) < SHARED:  # of the first answer to an offer: what was lacking
            flipped.append(len(target))
            target[0] ^= 1
        return checksum

    for module in (framing, incoming):
        monkeypatch.setattr(module, "receive_into", damaged)
    for step in (1, 2, 3):
        save_all(c, step)
        wait_until(lambda step=step: all_replicated(c, step))
    assert flipped
    for rank, fd in c.fds.items():
        assert replica(c, rank, 3) == content(fd, rank, 3)


def test_a_replica_that_shares_damaged_memory_is_dropped(cluster):
    c = cluster(2, nproc=2)
    save_all(c, 1)
    wait_until(lambda: all_replicated(c, 1))
    arena = ArenaReader(c.fds[0])
    info = arena.find(0, 1)
    arena.view(info)[-SHARED // 2] ^= 1  # rank 2's replica rests on it
    assert replica(c, 2, 1) is None
    assert not c.holds("n0", 2, 1, "peer")
    assert replica(c, 3, 1) == content(c.fds[3], 3, 1)


def test_a_replica_whose_shared_slot_was_overwritten_is_dropped(cluster):
    c = cluster(2, nproc=2)
    save_all(c, 1)
    wait_until(lambda: all_replicated(c, 1))
    ArenaWriter(c.fds[0]).invalidate(ArenaReader(c.fds[0]).find(0, 1))
    assert not c.holds("n0", 2, 1, "peer")
    assert c.holds("n0", 3, 1, "peer")
    assert replica(c, 2, 1) is None


def test_ranks_with_nothing_in_common_are_offered_only_now_and_then(cluster, monkeypatch):
    offers = []
    put = PeerClient.put

    def counting(self, replicas, pace=None):
        offers.extend(bool(replica.offered) for replica in replicas)
        return put(self, replicas, pace)

    monkeypatch.setattr(PeerClient, "put", counting)
    c = cluster(2)
    for step in range(1, 31):
        save(c.fds[0], 0, step, world=2, tensors={"w": np.full(30_000, step + 0.5)})
        save(c.fds[1], 1, step, world=2, tensors={"w": np.full(30_000, -step)})
        wait_until(lambda step=step: c.holds("n1", 0, step, "peer") and c.holds("n0", 1, step, "peer"))
    assert len(offers) == 60
    assert 6 <= sum(offers) <= 8


def test_a_save_is_recorded_once_however_often_its_rank_starts(cluster):
    c = cluster(1)
    service, stages = c.services["n0"], []

    def copied() -> list[int]:
        rows = [r for b in service.take_records(0, "checkpoints") for r in b.to_rows()]
        stages.extend(r["step"] for r in rows if r["stage"] == "copy")
        return stages

    c.save(1)
    wait_until(lambda: copied() == [1])
    service.attach(0, c.fds[0])  # the next attempt
    service.detach(0)
    service.attach(0, c.fds[0])
    c.save(2)
    wait_until(lambda: 2 in copied())
    assert stages == [1, 2]
