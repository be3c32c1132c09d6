"""The agent's connection to a hub that goes away, refuses, or is slow. Real sockets, no other process."""

import threading

import pytest

from pulsetrain.agent.hub_connection import HubConnection
from pulsetrain.agent.hub_notice import HubNotice
from pulsetrain.agent.link import Link
from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import (
    UNCONFIRMED,
    Confirm,
    Heartbeat,
    Hello,
    Ping,
    RankExit,
    Reply,
    SelfCheck,
)
from tests.agent.fakehub import TOKEN, FakeHub
from tests.recovery.fakes import FakeClock

HELLO = Hello(
    node="a", address="127.0.0.1", job="job", pid=1, nproc_per_node=1, nnodes=1, max_restarts=0, peer_port=0
)


def _beat(seq):
    return Heartbeat(node="a", seq=seq, ts_ns=0, job="job", attempt=-1)


def _exit(rank):
    return RankExit(node="a", ts_ns=0, job="job", attempt=0, rank=rank, pid=1, code=1)


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.down()


@pytest.fixture
def connect(hub):
    links = []

    def connect(*, token=TOKEN, hubs=(), greeting=lambda: (HELLO,), on_command=lambda command, answer: None):
        first, *others = [each.url for each in hubs or (hub,)]
        link = Link(HubAddress(url=first, token=token, others=tuple(others)), greeting, on_command)
        links.append(link)
        link.start()
        return link

    yield connect
    for link in links:
        link.close(flush_s=0)


def test_hello_comes_first_and_only_once_the_agent_is_ready(hub, connect):
    link = connect()
    link.report(_exit(3))
    link.send_heartbeat(_beat(0))
    assert hub.count(Hello) == 0
    link.introduce()
    hub.wait(Heartbeat)
    assert [type(m).__name__ for _, m in hub.received] == ["Hello", "RankExit", "Heartbeat"]


def test_a_wrong_token_is_refused_before_anything_is_sent(hub, connect):
    link = connect(token="guessed")
    with pytest.raises(AuthError, match="refuses the token"):
        link.refused.result(40)
    assert not hub.received


def test_a_hub_that_cannot_take_this_agent_says_why(hub, connect):
    link = connect()
    link.introduce()
    hub.wait(Hello)
    hub.refuse("a", "node 'a' is already connected")
    with pytest.raises(UsageError, match="already connected"):
        link.refused.result(40)


def test_every_command_gets_one_reply(hub, connect):
    def on_command(command, answer):
        answer(Reply(id=command.id, node="a", data={"seconds": command.seconds}))

    connect(on_command=on_command).introduce()
    hub.wait(Hello)
    assert hub.ask("a", SelfCheck, seconds=0.5).data == {"seconds": 0.5}
    assert hub.ask("a", SelfCheck, seconds=2.5).data == {"seconds": 2.5}
    assert hub.count(Reply) == 2


def test_after_a_reconnect_the_hub_hears_the_state_and_what_it_missed(hub, connect):
    known = [_exit(0)]
    link = connect(greeting=lambda: (HELLO, *known))
    link.introduce()
    hub.wait(RankExit)
    hub.down()
    link.report(_exit(1))
    hub.received.clear()
    hub.up()
    hub.wait(RankExit, lambda m: m.rank == 1)
    assert [(type(m).__name__, getattr(m, "rank", None)) for _, m in hub.received] == [
        ("Hello", None),
        ("RankExit", 0),
        ("RankExit", 1),
    ]


def test_of_several_hubs_the_one_that_is_there_is_found_also_when_it_changes(hub, connect):
    other = FakeHub()
    other.down()
    link = connect(hubs=(other, hub))
    link.introduce()
    hub.wait(Hello)
    hub.down()
    other.up()
    other.wait(Hello)
    other.down()


def test_it_waits_only_once_all_hubs_have_failed():
    hubs = [FakeHub(), FakeHub()]
    for hub in hubs:
        hub.down()
    first, second = (hub.url for hub in hubs)
    link = Link(HubAddress(url=first, token=TOKEN, others=(second,)), lambda: (), lambda *_: None)
    try:
        assert [link._turn() for _ in range(6)] == [0.0, 0.05, 0.0, 0.1, 0.0, 0.2]
    finally:
        link.close(flush_s=0)


def test_hubs_that_take_it_and_close_at_once_are_not_tried_without_a_wait(monkeypatch):
    class Closed:
        greeted = False

        async def wait(self, event, timeout_s):
            raise Unavailable("closed")

        async def close(self):
            pass

    async def open_(hub, on_message):
        return Closed()

    monkeypatch.setattr(HubConnection, "open", open_)
    hub = HubAddress(url="http://127.0.0.1:1", token=TOKEN, others=("http://127.0.0.1:2",))
    link = Link(hub, lambda: (), lambda *_: None)
    try:
        assert [link._turn() for _ in range(8)] == [0.0, 0.0, 0.0, 0.05] * 2
    finally:
        link.close(flush_s=0)


def test_a_person_is_told_that_a_hub_is_not_reached_and_that_it_is_there_again(hub):
    said, clock = [], FakeClock()
    hub.down()
    link = Link(HubAddress(url=hub.url, token=TOKEN), tuple, print, HubNotice(said.append, clock))
    try:
        link._turn()
        clock.now_s += 6.0
        link._turn()
        assert len(said) == 1
        assert said[0].startswith(f"hub ws{hub.url[4:]}/v1/agent cannot be reached: ")
        hub.up()
        while len(said) < 2:
            link._turn()
        assert said[1] == f"hub {hub.url} is reached"
    finally:
        link.close(flush_s=0)


@pytest.fixture
def elected_hub():
    hub = FakeHub(leads_s=3.0)
    yield hub
    hub.down()


def test_one_of_several_hubs_shows_that_it_leads_before_its_command_is_carried_out(elected_hub, connect):
    carried_out = []

    def on_command(command, answer):
        carried_out.append(type(command))
        answer(Reply(id=command.id, node="a"))

    connect(hubs=[elected_hub], on_command=on_command).introduce()
    elected_hub.wait(Hello)
    assert elected_hub.ask("a", SelfCheck).error == ""
    assert elected_hub.ask("a", Ping).error == ""
    assert (carried_out, elected_hub.count(Confirm)) == ([SelfCheck, Ping], 1)


@pytest.mark.parametrize("leads_s", [0.0, -1.0], ids=["says no", "says nothing"])
def test_a_hub_that_cannot_show_that_it_leads_is_refused(elected_hub, connect, monkeypatch, leads_s):
    monkeypatch.setattr("pulsetrain.agent.link.ANSWER_S", 0.1)
    carried_out = []
    connect(hubs=[elected_hub], on_command=lambda command, answer: carried_out.append(command)).introduce()
    elected_hub.wait(Hello)
    elected_hub.leads_s = leads_s
    assert elected_hub.ask("a", SelfCheck).error == UNCONFIRMED
    assert carried_out == []


def test_a_reply_to_a_lost_connection_is_dropped(hub, connect):
    asked, answers = threading.Event(), []

    def on_command(command, answer):
        answers.append(lambda: answer(Reply(id=command.id, node="a")))
        asked.set()

    link = connect(on_command=on_command)
    link.introduce()
    hub.wait(Hello)
    with pytest.raises(AssertionError, match="no Reply"):
        hub.ask("a", SelfCheck, timeout_s=0.2)
    assert asked.wait(40)
    hub.down()
    hub.received.clear()
    hub.up()
    hub.wait(Hello)
    answers[0]()
    link.send_heartbeat(_beat(1))
    hub.wait(Heartbeat)
    assert hub.count(Reply) == 0


def test_heartbeats_that_were_not_sent_are_replaced_by_the_newest(hub, connect):
    link = connect()
    for seq in range(100):
        link.send_heartbeat(_beat(seq))
    link.introduce()
    assert hub.wait(Heartbeat).seq == 99
    assert hub.count(Heartbeat) == 1


def test_closing_sends_what_waits(hub, connect):
    link = connect()
    link.introduce()
    hub.wait(Hello)
    link.report(_exit(5))
    link.close(flush_s=40)
    hub.wait(RankExit)
