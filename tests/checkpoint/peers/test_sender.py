"""What one peer is sent, and what happens when it is away."""

import threading

import pytest

from pulsetrain.checkpoint.peers.client import PeerClient
from tests.checkpoint.trainers import save, wait_until

pytestmark = pytest.mark.integration


def test_a_checkpoint_that_is_being_sent_is_not_written_over(cluster, monkeypatch):
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
