"""Attacks on a hub, over its real routes: each is refused, or found afterwards."""

import contextlib
import json
import time

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from pulsetrain.hub import audit_log
from pulsetrain.hub.app import build
from pulsetrain.hub.audit_log import AuditLog
from pulsetrain.hub.token_file import Role, TokenFile
from pulsetrain.protocol.messages import Ping, Reply, decode, encode
from tests.hub.conftest import Clock
from tests.recovery.builders import heartbeat, hello

OWN = "t"


@pytest.fixture
def parts(hub, monkeypatch):
    monkeypatch.setattr("pulsetrain.hub.app.records", lambda parts: [])
    made = hub.make()
    yield made
    made.alerts.close()


@pytest.fixture
def file(tmp_path):
    return TokenFile(tmp_path)


@pytest.fixture
def client(parts):
    app = build(parts)
    app.router.lifespan_context = _no_loops
    with TestClient(app, raise_server_exceptions=True) as client, contextlib.ExitStack() as sockets:
        client.sockets = sockets
        yield client


@contextlib.asynccontextmanager
async def _no_loops(app):
    yield


def agent(client, token, said):
    """A connection on which an agent has said hello."""
    headers = {"Authorization": f"Bearer {token}"}
    socket = client.sockets.enter_context(client.websocket_connect("/v1/agent", headers=headers))
    socket.send_text(encode(said))
    return socket


def refusal(socket):
    with pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_text()
    return closed.value.code, closed.value.reason


def until(true):
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 5 s")


def test_a_hello_with_the_token_of_another_node_is_refused(client, file, parts):
    token = file.create("a", Role.AGENT, node="a", now_ns=1)
    assert refusal(agent(client, token, hello("b"))) == (1008, "node 'b': the token is for node 'a'")
    assert parts.controller.node("j", "b") is None


def test_a_forged_hello_does_not_push_out_a_living_agent(client, parts):
    first = agent(client, OWN, hello("a"))
    until(lambda: parts.controller.node("j", "a"))
    forged = agent(client, OWN, hello("a"))  # the pid is right, too
    ping = decode(first.receive_text())
    assert isinstance(ping, Ping)
    first.send_text(encode(Reply(id=ping.id, node="a")))
    assert refusal(forged) == (
        1008,
        "node 'a' is already connected (pid 97); give --node another name, or --job for another run",
    )
    first.send_text(encode(heartbeat("a", seq=3)))
    until(lambda: parts.claims.newest_heartbeat("j", "a") == 3)


def test_an_agent_whose_old_connection_is_dead_gets_its_node_back(client, parts):
    agent(client, OWN, hello("a"))  # it does not answer
    until(lambda: parts.controller.node("j", "a"))
    again = agent(client, OWN, hello("a"))
    again.send_text(encode(heartbeat("a", seq=3)))
    until(lambda: parts.claims.newest_heartbeat("j", "a") == 3)


def test_a_heartbeat_that_is_sent_again_changes_nothing(client, parts):
    socket = agent(client, OWN, hello("a"))
    old = encode(heartbeat("a", seq=1, gauges={"x": 1.0}))
    for text in (old, encode(heartbeat("a", seq=2, gauges={"x": 2.0})), old):
        socket.send_text(text)
    until(lambda: parts.claims.refused["replay"] == 1)
    assert parts.controller.node("j", "a").heartbeat.gauges == {"x": 2.0}


def test_a_heartbeat_of_another_node_ends_the_connection(client, parts):
    socket = agent(client, OWN, hello("a"))
    socket.send_text(encode(heartbeat("b")))
    assert refusal(socket) == (1008, "a Heartbeat of node 'b' on the connection of node 'a'")
    assert parts.claims.refused["node"] == 1


def test_the_token_of_an_agent_does_not_evict(client, file):
    token = file.create("a", Role.AGENT, node="a", now_ns=1)
    body = {"node": "b", "reason": "x", "dry_run": False, "actor": "me"}
    answer = client.post("/v1/evict", json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403
    assert answer.json() == {"error": "token 'a' of role agent may not POST /v1/evict"}


def test_an_expired_token_connects_no_agent_and_reads_nothing(client, file):
    token = file.create("old", Role.AGENT, now_ns=1, expires_ns=Clock().wall_ns())
    assert client.get("/v1/status", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    with pytest.raises(WebSocketDenialResponse) as refused:
        agent(client, token, hello("a"))
    assert refused.value.status_code == 401


def test_an_edited_row_of_the_audit_log_is_found(tmp_path):
    path = tmp_path / audit_log.NAME
    AuditLog(path).append({"kind": "evict", "node": name, "actor": "me"} for name in "abc")
    assert audit_log.verify_file(path).problems == ()
    path.write_text(path.read_text().replace('"b"', '"x"').replace(json.dumps("b"), json.dumps("x")))
    found = audit_log.verify_file(path).problems
    assert [problem.line for problem in found][:1] == [2]
