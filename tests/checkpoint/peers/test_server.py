"""Who may connect to an agent, and what it answers."""

import os
import socket
import time

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.peers import client, incoming
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.client import OutgoingReplica, PeerClient
from pulsetrain.checkpoint.peers.framing import receive_frame, send_frame
from pulsetrain.checkpoint.peers.replicas import Replicas, _Replica
from pulsetrain.checkpoint.peers.server import PeerServer
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.core.errors import AuthError, MemoryShort, Unavailable
from tests.checkpoint.trainers import content, save, wait_until


@pytest.fixture
def server():
    made = PeerServer(Replicas(), address="127.0.0.1", port=0, token="t", job="j", block_dedup=BlockDedup())
    yield made
    made.close()


def connect(server: PeerServer, token: str = "t") -> PeerClient:
    return PeerClient(address="127.0.0.1", port=server.port, token=token, job="j", node="n", timeout_s=20)


def test_offers_are_accepted_only_with_deduplication(server):
    plain = PeerServer(Replicas(), address="127.0.0.1", port=0, token="t", job="j")
    assert connect(server).accepts_offers
    assert not connect(plain).accepts_offers
    plain.close()


@pytest.mark.parametrize(
    "request_",
    [{"op": "offer", "of": 3}, {"op": "offer", "of": [7]}, {"op": "put"}, {"op": "get", "rank": "x"}, {}],
)
def test_a_peer_that_breaks_the_protocol_is_disconnected_and_others_are_served(server, request_):
    rude, other = connect(server), connect(server)
    send_frame(rude._sock, request_)
    with pytest.raises(Unavailable):
        receive_frame(rude._sock)
    assert not other.segment(1, "x", memoryview(bytearray(1)))  # an answer: there is no storage here


def test_a_wrong_token_is_refused(server):
    with pytest.raises(AuthError):
        connect(server, token="wrong")


def test_a_port_that_is_taken_is_an_error(server):
    with pytest.raises(Unavailable, match=f"checkpoint port 127.0.0.1:{server.port}"):
        PeerServer(Replicas(), address="127.0.0.1", port=server.port, token="t", job="j")


@pytest.mark.parametrize("offered", [True, False])
def test_a_replica_without_memory_is_refused_and_the_connection_goes_on(offered):
    fd, left = create_arena(), [0]
    save(fd, 1, 5)
    arena = ArenaReader(fd)
    info = arena.find(1, 5)
    replica = OutgoingReplica(arena, info, arena.digests(info) if offered else b"")
    full = PeerServer(
        Replicas(lambda: left[0]), address="127.0.0.1", port=0, token="t", job="j", block_dedup=BlockDedup()
    )
    sender = connect(full)
    with pytest.raises(MemoryShort, match=r"the peer refuses it: .* of rank 1 needs .* 0.0 MB are left"):
        list(sender.put([replica]))
    left[0] = 1 << 40
    assert list(sender.put([replica])) == [(replica, info.total_bytes)]
    full.close()
    os.close(fd)


def test_who_does_not_prove_the_token_in_time_is_disconnected(server, monkeypatch):
    monkeypatch.setattr("pulsetrain.checkpoint.peers.server.HANDSHAKE_S", 0.05)
    known = connect(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stranger:
        assert "nonce" in receive_frame(stranger)
        stranger.sendall(b"\0")  # a byte now and then gains it no time
        assert stranger.recv(1) == b""
    assert not known.segment(1, "x", memoryview(bytearray(1)))  # an answer


def test_a_machine_that_vanishes_is_noticed_soon(server):
    sock = connect(server)._sock
    idle, pause, count = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + count * pause <= 120


def test_connections_of_nodes_that_left_are_ended(server):
    client = connect(server)
    assert not client.segment(1, "x", memoryview(bytearray(1)))
    server.keep_only({"n", "other"})
    assert not client.segment(1, "x", memoryview(bytearray(1)))
    server.keep_only({"other"})
    with pytest.raises(Unavailable):
        client.segment(1, "x", memoryview(bytearray(1)))


@pytest.mark.integration
def test_a_peer_that_works_longer_than_the_timeout_is_not_away(cluster, monkeypatch):
    c = cluster(2, peer_timeout_s=0.2)
    c.save(5)
    expected = content(c.fds[1], 1, 5)
    wait_until(lambda: c.holds("n0", 1, 5, "peer"))
    complete = _Replica.complete

    def slow(replica) -> bool:
        time.sleep(0.5)  # it copies and compares a large state
        return complete(replica)

    monkeypatch.setattr(_Replica, "complete", slow)
    c.services["n1"].close()
    c.start("spare")
    c.set_world(["n0", "spare"], 1)
    fd = c.attach("spare", 1)
    c.services["spare"].load(1, 5, "peer:n0")
    assert content(fd, 1, 5) == expected
    assert "restore_fallthrough" not in [kind for kind, _ in c.events("spare")]


@pytest.mark.integration
def test_a_peer_that_compares_a_large_offer_for_long_is_not_away(cluster, monkeypatch):
    monkeypatch.setattr(client, "SMALL_BYTES", 0)
    agree = incoming.has_digests

    def slow(*args) -> bool:
        time.sleep(0.5)
        return agree(*args)

    monkeypatch.setattr(incoming, "has_digests", slow)
    c = cluster(2, peer_timeout_s=0.2)
    c.save(1)
    wait_until(lambda: c.holds("n1", 0, 1, "peer"))
    wait_until(lambda: ArenaReader(c.fds[0]).replicated_step == 1)
    assert "replica_peer_away" not in [kind for kind, _ in c.events("n0")]


def test_an_older_peer_gets_no_frames_that_it_does_not_know(server):
    old = connect(server)
    send_frame(old._sock, {"op": "get", "rank": 0, "step": 1})
    assert "error" in receive_frame(old._sock)


@pytest.mark.integration
def test_a_wrong_token_or_job_gets_nothing(cluster):
    c = cluster(1)
    port = c.services["n0"].peer_port
    for token, job in (("wrong", "j"), ("secret", "other"), ("", "j")):
        with pytest.raises(AuthError):
            PeerClient(address="127.0.0.1", port=port, token=token, job=job, node="x")


@pytest.mark.integration
def test_a_port_in_use_is_an_error(cluster):
    c = cluster(1)
    taken = CheckpointServiceConfig(token="t", port=c.services["n0"].peer_port)
    with pytest.raises(Unavailable, match="checkpoint port"):
        CheckpointService(taken, job="j", node="x", address="127.0.0.1")
