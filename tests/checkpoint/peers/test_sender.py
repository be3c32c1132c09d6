"""What one peer is sent, and what happens when it is away."""

import os
import threading

import pytest

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.peers.rounds import Rounds
from pulsetrain.checkpoint.peers.sender import (
    OFFER_AGAIN_SAVES,
    REFUSED_RETRY_S,
    RETRY_S,
    PeerSender,
    Sending,
)
from pulsetrain.checkpoint.peers.watched_arena import WatchedArena
from pulsetrain.core.errors import MemoryShort, Unavailable
from tests.checkpoint.trainers import save, wait_until


class Peer:
    """A peer that receives what it is sent, or refuses."""

    accepts_offers = True

    def __init__(self, *, lacks: float = 1.0) -> None:
        self.lacks, self.frames, self.fails, self.closed = lacks, [], False, 0
        self.full = False

    def put(self, replicas, pacer=None):
        if self.fails:
            raise MemoryShort("no room") if self.full else Unavailable("gone")
        self.frames.append([(r.info.rank, r.info.step, bool(r.offered)) for r in replicas])
        for replica in replicas:
            yield replica, int(self.lacks * replica.info.total_bytes)

    def close(self) -> None:
        self.closed += 1


class Node:
    """The arenas of some ranks, and a sender to one peer."""

    def __init__(self, *ranks: int, peer: Peer | None = None, share: bool = True, receives=None) -> None:
        self.peer = peer or Peer()
        self.fds = {rank: create_arena() for rank in ranks}
        self.watched = [WatchedArena(rank, ArenaReader(fd)) for rank, fd in self.fds.items()]
        self.events = CheckpointEvents(Origin(job="j", node="n"))
        self.arrived: list[tuple[int, int]] = []
        sending = Sending(
            connect=lambda name: self.peer,
            events=self.events,
            share=share,
            interleaver=None,
            while_waiting=lambda: None,
            arrived=lambda replica: self.arrived.append((replica.info.rank, replica.info.step)),
        )
        self.sender = PeerSender("b", receives, sending)
        self.rounds = Rounds()

    def save(self, step: int, *ranks: int) -> None:
        for rank in ranks or self.fds:
            save(self.fds[rank], rank, step)

    def look(self) -> None:
        """What the replicator does at each look."""
        for one in self.watched:
            one.record_saves(self.events)
        chosen = self.rounds.choose(self.watched)
        with self.rounds.sending(chosen):
            self.sender.send_due(chosen)
            arrived = any(self.sender.has(one) for one in chosen)
            self.rounds.end(chosen, arrived=arrived, complete=arrived)

    def kinds(self) -> list[str]:
        return [r["kind"] for b in self.events.take("events") for r in b.to_rows()]

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


@pytest.fixture
def node():
    made = []

    def make(*ranks: int, **options) -> Node:
        made.append(Node(*ranks, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_only_the_newest_is_sent_and_only_once(node):
    one = node(0)
    one.save(1)
    one.save(2)
    one.look()
    one.look()
    assert one.arrived == [(0, 2)]
    one.save(3)
    one.look()
    assert one.arrived == [(0, 2), (0, 3)]


def test_small_states_share_a_frame_where_they_are_offered(node):
    offering, plain = node(0, 1), node(0, 1, share=False)
    for one in (offering, plain):
        one.save(1)
        one.look()
    assert offering.peer.frames == [[(0, 1, True), (1, 1, True)]]
    assert plain.peer.frames == [[(0, 1, False)], [(1, 1, False)]]


def test_a_peer_gets_the_ranks_that_placement_gives_it(node):
    one = node(0, 1, 2, receives=frozenset({1}))
    one.save(1)
    one.look()
    assert one.arrived == [(1, 1)]


def test_a_peer_that_has_much_is_an_event_once_and_is_offered_every_save(node):
    one = node(0, peer=Peer(lacks=0.1))
    for step in range(1, 30):
        one.save(step)
        one.look()
    assert all(offered for frame in one.peer.frames for _, _, offered in frame)
    assert one.kinds() == ["replica_shared"]


def test_a_peer_that_has_little_is_offered_only_now_and_then(node):
    one = node(0)
    for step in range(1, 2 * OFFER_AGAIN_SAVES + 2):
        one.save(step)
        one.look()
    offered = [step for frame in one.peer.frames for _, step, offered in frame if offered]
    assert offered == [1, 2, 3, OFFER_AGAIN_SAVES + 1, 2 * OFFER_AGAIN_SAVES + 1]


def test_a_peer_that_is_away_is_tried_again_later_and_gets_the_newest(node, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pulsetrain.checkpoint.peers.sender.time.monotonic", lambda: now[0])
    one = node(0)
    one.save(1)
    one.peer.fails = True
    one.look()
    assert one.sender.away
    one.peer.fails = False
    one.save(2)
    one.look()
    assert one.arrived == []  # not at once
    now[0] += RETRY_S
    one.look()
    assert one.arrived == [(0, 2)]
    assert not one.sender.away
    assert one.kinds() == ["replica_peer_away", "replica_peer_back"]
    assert one.peer.closed == 1


def test_a_peer_without_memory_is_asked_again_seldom_and_the_event_says_why(node, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pulsetrain.checkpoint.peers.sender.time.monotonic", lambda: now[0])
    one = node(0)
    one.save(1)
    one.peer.fails = one.peer.full = True
    one.look()
    assert one.sender.away  # training does not wait for it
    one.peer.fails = False
    now[0] += RETRY_S
    one.look()
    assert one.arrived == []
    now[0] += REFUSED_RETRY_S - RETRY_S
    one.look()
    assert one.arrived == [(0, 1)]
    assert one.kinds() == ["replica_refused", "replica_peer_back"]


def test_a_slot_is_held_only_while_it_is_sent(node):
    one = node(0)
    one.save(1)
    (info,) = one.watched[0].arena.published()
    held = []
    put = one.peer.put

    def looking(replicas, pacer=None):
        held.append(one.watched[0].arena.sending(info))
        yield from put(replicas, pacer)

    one.peer.put = looking
    one.look()
    assert held == [True]
    assert not one.watched[0].arena.sending(info)
    one.save(2)
    one.peer.fails = True
    one.look()
    assert not any(one.watched[0].arena.sending(i) for i in one.watched[0].arena.published())


def test_a_new_arena_of_a_rank_is_sent_from_the_start(node):
    one = node(0)
    one.save(1)
    one.look()
    one.sender.forget(0)
    one.look()
    assert one.arrived == [(0, 1), (0, 1)]


def test_each_save_and_each_skipped_one_is_recorded_once(node):
    one = node(0)
    one.save(1)
    one.look()
    ArenaWriter(one.fds[0]).skip(2, "no room")
    one.look()
    one.look()
    rows = [r for b in one.events.take() for r in b.to_rows()]
    stages = [(r["stage"], r["step"]) for r in rows if "stage" in r]
    assert sorted(stages) == [("copy", 1), ("replicate", 1), ("skip", 2), ("stall", 1)]
    assert [r["kind"] for r in rows if "kind" in r] == ["checkpoint_skipped"]


@pytest.mark.integration
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


@pytest.mark.integration
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
