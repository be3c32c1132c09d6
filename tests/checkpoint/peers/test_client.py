"""A client against a real server in this process: what is sent, what comes back, what goes wrong."""

import os
import socket

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.client import OutgoingReplica, PeerClient
from pulsetrain.checkpoint.peers.replicas import Replicas
from pulsetrain.checkpoint.peers.server import PeerServer
from pulsetrain.core.errors import CheckpointError, Unavailable
from tests.checkpoint.trainers import content, save


class Link:
    """A node that receives, a connection to it, and the arena of rank 1 on this side."""

    def __init__(self, segments=None) -> None:
        self.fd, self.own = create_arena(), create_arena()
        self.arena, self.replicas = ArenaReader(self.fd), Replicas()
        self.block_dedup = BlockDedup()
        self.block_dedup.attach(0, self.own)
        self.server = PeerServer(
            self.replicas,
            address="127.0.0.1",
            port=0,
            token="t",
            job="j",
            segments=segments,
            block_dedup=self.block_dedup,
        )
        self.client = PeerClient(
            address="127.0.0.1", port=self.server.port, token="t", job="j", node="n", timeout_s=20
        )

    def outgoing(self, step: int, *, offered: bool = False, **options) -> OutgoingReplica:
        save(self.fd, 1, step, **options)
        info = self.arena.find(1, step)
        return OutgoingReplica(self.arena, info, self.arena.digests(info) if offered else b"")

    def put(self, *replicas: OutgoingReplica, pacer=None) -> list:
        return [(r.info.step, sent) for r, sent in self.client.put(replicas, pacer)]

    def held(self, step: int) -> bytes | None:
        with self.replicas.reading(1, step) as replica:
            return None if replica is None else bytes(replica[1])

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.block_dedup.detach(0)
        os.close(self.fd)
        os.close(self.own)


@pytest.fixture
def link():
    made = Link()
    yield made
    made.close()


def test_a_replica_arrives_whole_and_comes_back(link):
    outgoing = link.outgoing(3)
    assert link.put(outgoing) == [(3, outgoing.info.total_bytes)]
    assert link.held(3) == content(link.fd, 1, 3)
    back = create_arena()
    info = link.client.get(1, 3, ArenaWriter(back))
    assert content(back, 1, 3) == content(link.fd, 1, 3)
    assert info.checksum == outgoing.info.checksum
    os.close(back)


def test_what_the_peer_does_not_have_is_an_error(link):
    with pytest.raises(CheckpointError, match="it has no step 9 of rank 1"):
        link.client.get(1, 9, ArenaWriter(link.own))
    assert link.put(link.outgoing(1))[0][1]  # the connection serves on


def test_sizes_come_from_the_pacer_and_the_flush_sees_them_all_arrive(link):
    outgoing, asked = link.outgoing(3), []

    def pacer(total: int):
        left = total
        while left:
            part = min(left, 5000)
            left -= part
            yield part
            link.client.flush()
            asked.append(part)

    ((_, sent),) = link.put(outgoing, pacer=pacer)
    assert sum(asked) == sent == outgoing.info.total_bytes
    assert link.held(3) == content(link.fd, 1, 3)


def test_a_slot_that_was_overwritten_before_it_is_sent_is_skipped(link):
    outgoing = link.outgoing(3)
    ArenaWriter(link.fd).invalidate(outgoing.info)
    assert link.put(outgoing) == [(3, None)]
    assert link.held(3) is None


def test_a_slot_that_is_overwritten_while_it_is_sent_did_not_arrive(link):
    outgoing = link.outgoing(3)

    def pacer(total: int):
        ArenaWriter(link.fd).invalidate(outgoing.info)
        yield total

    assert link.put(outgoing, pacer=pacer) == [(3, None)]


def test_an_offer_of_content_that_the_peers_rank_saved_sends_nothing(link):
    save(link.own, 1, 3)
    assert link.put(link.outgoing(3, offered=True)) == [(3, 0)]
    assert link.held(3) == content(link.fd, 1, 3)


def test_an_offer_of_content_that_the_peer_does_not_have_is_sent_whole(link):
    outgoing = link.outgoing(3, offered=True)
    assert link.put(outgoing) == [(3, outgoing.info.total_bytes)]
    assert link.held(3) == content(link.fd, 1, 3)


def test_an_offer_that_the_peer_cannot_put_together_is_sent_whole(link):
    outgoing = link.outgoing(3, offered=True)
    right, link.arena.view = link.arena.view, lambda info: memoryview(bytes(info.total_bytes))
    link.client._missing_before[1] = (outgoing.info.total_bytes, [(0, outgoing.info.total_bytes)])
    assert link.put(outgoing) == [(3, outgoing.info.total_bytes)]
    link.arena.view = right
    assert link.held(3) == content(link.fd, 1, 3)


def test_stored_content_is_fetched_and_missing_content_is_false():
    link = Link(segments=lambda step, content: memoryview(f"{step}:{content}".encode()))
    target = memoryview(bytearray(4))
    assert link.client.segment(7, "ab", target)
    assert bytes(target) == b"7:ab"
    assert not link.client.segment(7, "longer", target)
    link.close()


def test_no_listener_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(Unavailable, match=f"peer 127.0.0.1:{port}"):
        PeerClient(address="127.0.0.1", port=port, token="t", job="j", node="n")


def test_a_peer_that_ends_is_unavailable(link):
    link.server.close()
    with pytest.raises(Unavailable):
        link.client.get(1, 3, ArenaWriter(link.own))
