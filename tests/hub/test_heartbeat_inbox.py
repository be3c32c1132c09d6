"""Heartbeats wait while reading them has used its share of the time, and nothing overtakes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.hub.heartbeat_inbox import BURST_S, IDLE_S, PAUSE_S, SHARE, HeartbeatInbox
from pulsetrain.protocol.messages import HEARTBEAT, Leaving, Reply, encode
from pulsetrain.recovery.nodes import Node
from tests.hub.fakes import Clock
from tests.recovery.builders import heartbeat, hello, status

COST_S = 0.8 * BURST_S
"""What it takes the controller of these tests to hear one message."""


class Listener:
    """Keeps in which order things are said to the controller. Each takes time."""

    def __init__(self, clock):
        self.clock, self.said, self.error = clock, [], None

    def connected(self, hello, send):
        self.said.append(("hello", hello.node))
        return Node(hello, send, self.clock.now_s)

    def arrived(self, node):
        node.heartbeat_came(self.clock.now_s)

    def received(self, node, message):
        self.clock.now_s += COST_S
        if self.error:
            raise self.error
        self.said.append((node.name, getattr(message, "seq", type(message).__name__)))

    def disconnected(self, node, send):
        self.said.append(("gone", node.name))


class Hub:
    """An inbox in a time that stands still but for what is heard."""

    def __init__(self):
        self.clock = Clock()
        self.listener = Listener(self.clock)
        self.inbox = HeartbeatInbox(self.listener, self.clock)
        self.nodes = {}

    def say(self, name, message):
        if name not in self.nodes:
            self.join(name)
        text = message if isinstance(message, str) else encode(message)
        self.inbox.take(self.nodes[name], self.send, text, self.takes)

    def takes(self, message):
        if message.node == "nobody":
            raise UsageError("nobody is another node")
        return getattr(message, "seq", 1) >= 0

    def join(self, name, send="connection"):
        self.send = send
        self.nodes[name] = self.inbox.connected(hello(name), send)
        self.listener.said.remove(("hello", name))

    def beat(self, *names, seq=1):
        for name in names:
            self.say(name, heartbeat(name, seq=seq))

    def turn(self):
        return asyncio.run(self.inbox.turn())

    def busy(self):
        """Let so many heartbeats come that the next one waits."""
        self.beat("x", "y", "z")
        self.listener.said.clear()


@pytest.fixture
def hub():
    return Hub()


def test_a_heartbeat_is_read_when_it_comes(hub):
    hub.beat("a")
    assert (hub.listener.said, hub.inbox.waiting) == ([("a", 1)], 0)


def test_what_comes_beyond_the_share_waits_for_its_turn(hub):
    hub.beat("a", "b", "c", "d", "e")
    assert (hub.listener.said, hub.inbox.waiting) == ([("a", 1), ("b", 1), ("c", 1)], 2)
    assert BURST_S < 3 * COST_S
    hub.clock.now_s += 1
    assert hub.turn() == IDLE_S
    assert hub.listener.said[3:] == [("d", 1), ("e", 1)]


def test_reading_takes_its_share_of_the_time_and_the_newest_of_each_node_is_read(hub):
    names, began_s, seq = "abcdefghij", hub.clock.now_s, 0
    while hub.clock.now_s < began_s + 1:
        seq += 1
        hub.beat(*names, seq=seq)
        hub.clock.now_s += hub.turn()
    heard = hub.listener.said
    assert len(heard) * COST_S == pytest.approx(SHARE, abs=0.05)
    assert {name for name, _ in heard} == set(names)
    for name in names:
        own = [seq for other, seq in heard if other == name]
        assert own == sorted(set(own))
    assert hub.inbox.waiting <= len(names)


def test_a_turn_that_leaves_something_comes_again_soon(hub):
    hub.busy()
    hub.beat("a", "b", "c", "d", "e")
    hub.clock.now_s += 1.5 * COST_S / SHARE
    assert hub.turn() == PAUSE_S
    assert hub.listener.said


def test_an_older_heartbeat_is_dropped_and_the_newer_one_has_its_turn(hub):
    hub.busy()
    hub.beat("a", "b", seq=1)
    hub.beat("a", seq=2)
    hub.clock.now_s += 1
    hub.turn()
    assert hub.listener.said == [("a", 2), ("b", 1)]


def test_no_heartbeat_overtakes_one_that_waits(hub):
    hub.busy()
    hub.beat("a", seq=1)
    hub.clock.now_s += 1
    hub.beat("b", "a", seq=2)
    assert hub.listener.said == []
    hub.turn()
    assert hub.listener.said == [("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    "message", [Reply(id=1, node="a"), Leaving(node="a", reason="end", signal="SIGTERM")]
)
def test_nothing_else_that_a_node_says_overtakes_its_heartbeat(hub, message):
    hub.busy()
    hub.beat("a", "b", seq=7)
    hub.say("a", message)
    assert hub.listener.said == [("a", 7), ("a", type(message).__name__)]
    assert hub.inbox.waiting == 1


def test_neither_a_new_connection_nor_the_end_of_one_overtakes_it(hub):
    hub.busy()
    hub.beat("a", "b", seq=7)
    hub.inbox.connected(hello("a"), "newer")
    hub.inbox.disconnected(hub.nodes["b"], hub.send)
    assert hub.listener.said == [("a", 7), ("hello", "a"), ("b", 7), ("gone", "b")]


def test_the_same_name_in_another_job_is_another_node(hub):
    hub.busy()
    hub.beat("a")
    hub.inbox.connected(replace(hello("a"), job="other"), "newer")
    assert hub.listener.said == [("hello", "a")]
    assert hub.inbox.waiting == 1


def test_a_heartbeat_of_a_connection_that_was_given_up_is_not_heard(hub):
    hub.busy()
    hub.beat("a")
    hub.nodes["a"].disconnect(hub.clock.now_s)
    hub.clock.now_s += 1
    hub.turn()
    assert hub.listener.said == []


def test_damaged_messages_are_skipped_wherever_they_wait(hub):
    hub.busy()
    hub.say("a", HEARTBEAT + "damaged")
    hub.say("b", "damaged")
    hub.clock.now_s += 1
    hub.turn()
    assert (hub.listener.said, hub.inbox.waiting) == ([], 0)


def test_who_speaks_for_another_node_is_refused_at_once_or_when_it_was_read(hub):
    with pytest.raises(UsageError, match="another node"):
        hub.say("a", heartbeat("nobody"))
    hub.busy()
    hub.say("a", heartbeat("nobody"))
    hub.clock.now_s += 1
    hub.turn()
    with pytest.raises(UsageError, match="another node"):
        hub.beat("a")
    assert hub.listener.said == []


def test_who_spoke_for_another_node_while_it_waited_is_refused_before_anything_else_is_heard(hub):
    hub.busy()
    hub.say("a", heartbeat("nobody"))
    with pytest.raises(UsageError, match="another node"):
        hub.say("a", Reply(id=1, node="a"))
    assert hub.listener.said == []


def test_the_refusal_of_an_earlier_connection_is_not_that_of_the_next(hub):
    hub.busy()
    hub.say("a", heartbeat("nobody"))
    hub.join("a", "newer")
    hub.say("a", Reply(id=1, node="a"))
    assert hub.listener.said == [("a", "Reply")]


def test_a_heartbeat_that_was_sent_before_is_not_heard_again(hub):
    hub.busy()
    hub.beat("a", seq=-1)
    hub.clock.now_s += 1
    hub.turn()
    assert hub.listener.said == []


def test_one_heartbeat_that_fails_does_not_keep_the_others(hub):
    hub.busy()
    hub.beat("a", "b")
    hub.listener.error = CorruptData("broken")
    hub.clock.now_s += 1
    with pytest.raises(ExceptionGroup):
        hub.turn()
    assert hub.inbox.waiting == 0


def test_a_node_whose_heartbeat_waits_is_neither_silent_nor_said_to_stand_still(hub):
    hub.busy()
    hub.beat("a")
    node = hub.nodes["a"]
    node.take_heartbeat(heartbeat("a", status(0, progress_age_ns=0)), hub.clock.now_s)
    hub.clock.now_s += 100
    hub.busy()
    hub.beat("a", seq=2)
    assert hub.inbox.waiting
    assert (node.heard_s, node.heartbeat_s, node.heartbeat.seq) == (hub.clock.now_s, hub.clock.now_s, 1)


def test_the_text_of_a_heartbeat_is_known_by_its_beginning():
    assert encode(heartbeat("a")).startswith(HEARTBEAT)
    assert not encode(Reply(id=1, node="a")).startswith(HEARTBEAT)
