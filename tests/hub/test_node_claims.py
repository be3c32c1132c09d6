"""Who may speak for a node: only one living agent at a time, and only with a token that is for that node."""

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.hub.node_claims import NodeClaims, RefusalCollector
from pulsetrain.hub.refusal_log import AUDITED_S
from pulsetrain.hub.token_file import Grant, Role
from pulsetrain.hub.token_gate import GRANT
from pulsetrain.protocol.messages import Leaving, Ping, Reply, decode
from pulsetrain.recovery.nodes import Node
from tests.hub.fakes import Clock
from tests.recovery.builders import heartbeat, hello, rank_exit
from tests.recovery.fakes import KeptJournal


def grant(**changes):
    return Grant(**({"name": "t", "role": Role.AGENT, "sha256": "x"} | changes))


class Hub:
    """Claims over one node that an agent holds, whose answers a test chooses."""

    def __init__(self, answer=None):
        self.clock, self.journal, self.sent = Clock(), KeptJournal(), []
        self.answer = answer or (lambda ping: None)
        self.node = Node(hello("a"), self.send, self.clock.now_s)
        self.claims = NodeClaims(lambda job, node: self.node, self.journal, self.clock)

    async def send(self, text):
        self.sent.append(decode(text))
        self.answer(self.sent[-1])

    def reply(self, ping):
        self.node.answered(Reply(id=ping.id, node="a"))

    def take(self, claimed=None, of=None):
        claim = self.claims.connection(of)
        asyncio.run(claim.take(claimed or hello("a", pid=7)))
        return claim


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("pulsetrain.hub.node_claims.PING_S", 0.01)


def test_an_agent_that_answers_is_not_pushed_out():
    hub = Hub()
    hub.answer = hub.reply
    with pytest.raises(
        UsageError, match=r"node 'a' is already connected \(pid 97\); give --node another name, or --job"
    ):
        hub.take()
    assert [type(sent) for sent in hub.sent] == [Ping]
    assert hub.node.connected
    assert hub.claims.refused["second_agent"] == 1
    assert hub.journal.last("refused")["node"] == "a"


def test_the_same_pid_is_no_proof_that_it_is_the_same_agent():
    hub = Hub()
    hub.answer = hub.reply
    with pytest.raises(UsageError, match="already connected"):
        hub.take(hello("a"))


def test_an_agent_that_does_not_answer_makes_way():
    hub = Hub()
    hub.take()
    assert not hub.node.connected
    assert len(hub.sent) == 2  # the hub itself may have been held up the first time
    assert not hub.claims.refused


def test_an_agent_that_is_held_up_is_not_pushed_out_by_another_one_that_starts_beside_it():
    """Its ranks would be ended, though they train."""
    hub = Hub()
    hub.node.hello = hello("a", agent_id="first")
    hub.answer = lambda ping: hub.reply(ping) if len(hub.sent) == 5 else None
    with pytest.raises(UsageError, match="already connected"):
        hub.take(hello("a", agent_id="second"))
    assert hub.node.connected


def test_an_agent_that_says_anything_meanwhile_lives():
    hub = Hub()
    hub.node.hello = hello("a", agent_id="first")
    hub.answer = lambda ping: hub.node.heard(hub.clock.now_s + 1.0)
    with pytest.raises(UsageError, match="already connected"):
        hub.take(hello("a", agent_id="second"))


def test_an_agent_whose_old_connection_is_dead_is_back_soon():
    hub = Hub()
    hub.node.hello = hello("a", agent_id="first")
    hub.take(hello("a", agent_id="first"))
    assert len(hub.sent) == 2


def test_a_connection_that_cannot_be_written_to_makes_way_at_once():
    hub = Hub()

    def closed(ping):
        hub.node.disconnect(1.0)
        raise Unavailable("closed")

    hub.answer = closed
    hub.take()
    assert len(hub.sent) == 1


def test_an_agent_that_came_back_while_the_old_connection_was_asked_is_asked_too():
    hub = Hub()

    async def newer(text):
        hub.reply(decode(text))

    hub.answer = lambda ping: hub.node.reconnect(hello("a"), newer, 1.0)
    with pytest.raises(UsageError, match="already connected"):
        hub.take()
    assert hub.node.owns(newer)


def test_a_node_that_nobody_holds_is_free():
    hub = Hub()
    hub.node.disconnect(1.0)
    hub.take()
    hub.node = None
    hub.take()
    assert hub.sent == []


@pytest.mark.parametrize(
    ("of", "said", "words"),
    [
        ({"node": "a"}, hello("b"), "node 'b': the token is for node 'a'"),
        ({"job": "j"}, hello("a", job="k"), "job 'k': the token is for job 'j'"),
    ],
)
def test_a_token_is_for_its_node_and_job(of, said, words):
    hub = Hub(answer=lambda ping: None)
    with pytest.raises(UsageError, match=words):
        hub.take(said, grant(**of))
    assert hub.sent == []  # nobody is asked because of a hello that may not be said
    assert hub.journal.last("refused")["detail"]["token"] == "t"


@pytest.mark.parametrize(
    "message",
    [heartbeat("b"), rank_exit(2, 1, node="b"), Leaving(node="b", reason=""), Reply(id=1, node="b")],
)
def test_an_agent_cannot_speak_in_the_name_of_another_node(message):
    hub = Hub()
    claim = hub.take()
    with pytest.raises(UsageError, match="of node 'b' on the connection of node 'a'"):
        claim.takes(message)
    assert hub.claims.refused["node"] == 1


def test_a_heartbeat_is_taken_once_and_none_that_is_older():
    hub = Hub()
    claim = hub.take()
    assert claim.takes(heartbeat("a", seq=0))
    hub.node.take_heartbeat(heartbeat("a", seq=5), 1.0)
    assert [claim.takes(heartbeat("a", seq=seq)) for seq in (4, 5, 6)] == [False, False, True]
    assert hub.claims.refused["replay"] == 2


def test_refusals_are_written_down_once_a_minute_and_all_are_counted():
    hub = Hub()
    for _ in range(3):
        with pytest.raises(UsageError):
            hub.take(hello("b"), grant(node="a"))
    assert hub.journal.kinds() == ["refused"]
    hub.clock.now_s += AUDITED_S
    with pytest.raises(UsageError):
        hub.take(hello("b"), grant(node="a"))
    assert [e["detail"]["count"] for e in hub.journal.events] == [1, 4]
    (family,) = RefusalCollector(hub.claims.refused).collect()
    assert {s.labels["reason"]: s.value for s in family.samples if s.name.endswith("_total")} == {
        "node": 4, "job": 0, "second_agent": 0, "replay": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("of", "columns", "words"),
    [
        (None, {"node": ["b"]}, ""),
        ({}, {"node": ["b"]}, ""),
        ({"node": "a"}, {"node": ["a", "", "a"]}, ""),
        ({"node": "a"}, {"node": ["a", "b"]}, "steps of node 'b': the token is for node 'a'"),
        ({"job": "j"}, {"node": ["a"], "job": ["k"]}, "steps of job 'k': the token is for job 'j'"),
        ({"node": "a"}, {"rank": [1]}, ""),
    ],
)
def test_rows_of_another_node_or_job_are_refused(of, columns, words):
    hub = Hub()
    request = SimpleNamespace(scope={GRANT: grant(**of)} if of is not None else {})
    batch = SimpleNamespace(record="steps", source="a/0f", table=pa.table(columns))
    assert hub.claims.refusal_of_rows(request, batch) == words


@pytest.mark.parametrize(
    ("of", "source", "words"),
    [
        ({"node": "a"}, "b/0f", "steps numbered by node 'b': the token is for node 'a'"),
        ({"node": "a"}, "a/0f", ""),
        ({"node": "a"}, "my own program", ""),
        ({"job": "j"}, "b/0f", ""),
        ({}, "b/0f", ""),
    ],
)
def test_nobody_says_that_rows_of_another_node_have_come(of, source, words):
    hub = Hub()
    batch = SimpleNamespace(record="steps", source=source, table=pa.table({"rank": [1]}))
    assert hub.claims.refusal_of_rows(SimpleNamespace(scope={GRANT: grant(**of)}), batch) == words
