"""One agent's connection: who may speak, what is heard, and when it ends."""

import asyncio
import json
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.websockets import WebSocketDisconnect

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.hub.heartbeat_inbox import HeartbeatInbox
from pulsetrain.hub.leadership import Alone, Role
from pulsetrain.hub.node_claims import NodeClaims
from pulsetrain.hub.routes.agents import POLICY_VIOLATION, UNAUTHORIZED, serve_agent
from pulsetrain.protocol.messages import Confirm, Confirmed, Leave, encode
from pulsetrain.recovery.nodes import Node
from tests.hub.fakes import TOKEN, Clock
from tests.recovery.builders import heartbeat, hello
from tests.recovery.fakes import KeptJournal


class Socket:
    """A WebSocket that receives what a test lists, then the client's disconnect."""

    def __init__(self, *texts, token=TOKEN):
        self.headers, self.query_params = {"authorization": f"Bearer {token}"}, {}
        self.scope = {"server": ("10.0.0.5", 8780)}
        self.texts, self.sent, self.accepted, self.closed = list(texts), [], False, None

    async def accept(self, headers=None):
        self.accepted, self.response_headers = True, headers

    async def receive_text(self):
        await asyncio.sleep(0)  # what was begun goes on
        if not self.texts:
            raise WebSocketDisconnect(1000)
        text = self.texts.pop(0)
        return text() if callable(text) else text

    async def send_text(self, text):
        if self.closed:
            raise RuntimeError("closed")
        self.sent.append(text)

    async def close(self, code, reason=""):
        self.closed = (code, reason)


class Controller:
    """Takes one node and keeps what it says."""

    def __init__(self, error=None):
        self.node, self.heard, self.gone, self.error = None, [], False, error

    async def look_up(self, hello):
        self.looked_up = hello.job

    def connected(self, hello, send):
        assert self.looked_up == hello.job
        if self.error:
            raise self.error
        self.send, self.node = send, Node(hello, send, 0.0)
        return self.node

    def received(self, node, message):
        self.heard.append(message)

    def disconnected(self, node, send):
        self.gone = node.owns(send)


def serve(socket, controller, leadership=None):
    claims = NodeClaims(lambda job, node: controller.node, KeptJournal(), Clock())
    leadership = leadership or Alone("http://hub")
    inbox = HeartbeatInbox(controller, Clock())
    asyncio.run(serve_agent(socket, inbox, TOKEN, leadership, claims.connection(None)))
    return socket


def test_messages_arrive_in_order_and_the_end_of_the_connection_is_noticed():
    controller = Controller()
    beats = [heartbeat("a", seq=seq) for seq in (1, 2)]
    serve(Socket(encode(hello()), *map(encode, beats)), controller)
    assert (controller.node.name, controller.heard, controller.gone) == ("a", beats, True)
    assert controller.node.hub_address == "10.0.0.5"  # where this node reaches the hub


def test_without_the_token_nobody_is_accepted():
    socket = serve(Socket(encode(hello()), token="no"), Controller())
    assert (socket.accepted, socket.closed) == (False, (UNAUTHORIZED, ""))


@pytest.mark.parametrize(
    ("first", "error", "words"),
    [
        (encode(heartbeat("a")), None, "first message is Heartbeat, not Hello"),
        ("no json", None, "not a control message"),
        (encode(hello()), UsageError("already connected"), "already connected"),
        (encode(replace(hello(), node="")), None, "node '': allowed: 1 to 255 printable characters"),
        (encode(replace(hello(), agent_id="x" * 256)), None, "allowed: up to 255 characters"),
        (encode(replace(hello(), job="a\nb")), None, "job 'a\\nb': allowed"),
        (encode(replace(hello(), node="x" * 256)), None, "node 'xxxx"),
        (encode(replace(hello(), nnodes=1 << 62)), None, "nnodes 4611686018427387904: allowed: 1 to"),
        (encode(replace(hello(), nproc_per_node=0)), None, "nproc_per_node 0: allowed: 1 to 4096"),
    ],
)
def test_who_does_not_say_hello_properly_is_turned_away_with_the_reason(first, error, words):
    socket = serve(Socket(first), Controller(error))
    assert socket.closed[0] == POLICY_VIOLATION
    assert words in socket.closed[1]


def test_damaged_messages_and_commands_from_an_agent_are_skipped():
    controller = Controller()
    leave = encode(Leave(id=1, reason="an agent does not command"))
    serve(Socket(encode(hello()), "damaged", leave, encode(heartbeat("a"))), controller)
    assert controller.heard == [heartbeat("a")]


def test_a_node_that_was_given_up_meanwhile_has_to_say_hello_again():
    controller = Controller()

    def given_up():
        controller.node.disconnect(1.0)
        return encode(heartbeat("a"))

    socket = serve(Socket(encode(hello()), given_up), controller)
    assert (socket.closed, controller.heard) == ((POLICY_VIOLATION, "this node counted as lost"), [])


def test_a_command_on_a_closed_connection_is_unavailable():
    controller = Controller()
    socket = serve(Socket(encode(hello())), controller)
    socket.closed = (1000, "")
    with pytest.raises(Unavailable, match="connection closed"):
        asyncio.run(controller.send(json.dumps({})))


def test_a_hub_that_was_deposed_sends_no_command():
    leadership = SimpleNamespace(role=Role.LEADER)

    class Deposed(Controller):
        def received(self, node, message):
            leadership.role = Role.DEPOSED
            with pytest.raises(Unavailable, match="does not lead any more"):
                self.send(encode(Leave(id=1, reason="x", exit_code=1))).send(None)

    socket = serve(Socket(encode(hello()), encode(heartbeat("a"))), Deposed(), leadership)
    assert socket.sent == []


def elected(leads_s):
    answer = Future()
    answer.set_result(leads_s)
    return SimpleNamespace(role=Role.LEADER, confirm=lambda: answer)


def test_one_of_several_hubs_says_that_it_must_be_asked_and_answers():
    question, end = encode(Confirm(id=7, node="a")), encode(heartbeat("a"))
    socket = serve(Socket(encode(hello()), question, end, end, end), Controller(), elected(3.0))
    assert socket.response_headers == [(b"pulsetrain-confirm", b"1")]
    assert socket.sent == [encode(Confirmed(id=7, leads_s=3.0))]


def test_a_damaged_question_is_skipped_and_the_rest_is_heard():
    controller = Controller()
    damaged = '{"type":"Confirm","id":'
    socket = serve(Socket(encode(hello()), damaged, encode(heartbeat("a"))), controller, elected(3.0))
    assert (socket.sent, controller.heard) == ([], [heartbeat("a")])


def test_the_only_hub_need_not_be_asked():
    assert serve(Socket(encode(hello())), Controller()).response_headers is None
