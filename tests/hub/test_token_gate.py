"""What the bearer of a token may ask a hub for: over all of its routes."""

import time

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from pulsetrain.hub.app import api, build
from pulsetrain.hub.token_file import Role, TokenFile
from pulsetrain.protocol.messages import encode
from tests.hub.conftest import Clock
from tests.recovery.builders import hello
from tests.recovery.fakes import KeptJournal

OWN = "t"
FAR_NS = 1 << 62


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
    return TestClient(build(parts), raise_server_exceptions=True)


def ask(client, token, method, path):
    body = {"json": {}} if method == "POST" else {}
    return client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **body)


def routes(parts):
    for route in api(parts):
        if route.path != "/v1/agent":
            path = route.path.replace("{", "").replace("}", "")
            yield "POST" if "POST" in route.methods else "GET", path


def test_a_viewer_reads_everything_and_changes_nothing(parts, client, file):
    token = file.create("v", Role.VIEWER, now_ns=1)
    for method, path in routes(parts):
        answer = ask(client, token, method, path)
        if method == "GET":
            assert answer.status_code in (200, 400), path  # 400: no such job
        else:
            assert answer.status_code == 403, path
            assert answer.json()["error"] == f"token 'v' of role viewer may not POST {path}"


def test_an_agent_may_not_use_an_operators_routes(parts, client, file):
    token = file.create("a", Role.AGENT, now_ns=1)
    for method, path in routes(parts):
        allowed = path == "/v1/status"
        assert ask(client, token, method, path).status_code == (200 if allowed else 403), path
    assert ask(client, token, "POST", "/v1/records/steps").status_code == 404  # it got past the gate


def test_an_operator_may_do_what_the_hubs_own_token_may(parts, client, file):
    token = file.create("o", Role.OPERATOR, now_ns=1)
    for method, path in routes(parts):
        as_own = ask(client, OWN, method, path).status_code
        assert ask(client, token, method, path).status_code == as_own, path


def test_an_expired_token_is_refused_and_says_since_when(client, file):
    token = file.create("old", Role.OPERATOR, now_ns=1, expires_ns=Clock().wall_ns())
    answer = ask(client, token, "GET", "/v1/status")
    assert (answer.status_code, answer.json()) == (
        401, {"error": "token 'old' expired at 1970-01-01 00:16:40 UTC"},
    )  # fmt: skip
    assert ask(client, "unknown", "GET", "/v1/status").status_code == 401


def test_tokens_change_while_the_hub_runs(client, file):
    first = file.create("a", Role.VIEWER, now_ns=1, expires_ns=FAR_NS)
    second = file.create("b", Role.VIEWER, now_ns=1)
    assert ask(client, first, "GET", "/v1/status").status_code == 200
    file.revoke("a")
    assert ask(client, first, "GET", "/v1/status").status_code == 401
    assert ask(client, second, "GET", "/v1/status").status_code == 200


def test_who_acted_with_a_token_is_told_by_its_name(parts, client, file):
    token = file.create("ops", Role.OPERATOR, now_ns=1)
    silence = {"actor": "root", "matchers": {"job": "gpt"}, "seconds": 60}
    for each, actor in ((token, "root (token ops)"), (OWN, "root")):
        headers = {"Authorization": f"Bearer {each}"}
        assert client.post("/v1/silences", json=silence, headers=headers).json()["author"] == actor


def test_refused_tokens_are_in_the_audit_log_once_a_minute(client, parts, file, monkeypatch):
    journal = KeptJournal()
    monkeypatch.setattr(parts.writer, "event", journal.event)
    viewer = file.create("v", Role.VIEWER, now_ns=1)
    old = file.create("old", Role.OPERATOR, now_ns=1, expires_ns=Clock().wall_ns())
    for _ in range(3):
        ask(client, viewer, "POST", "/v1/evict")
        ask(client, old, "GET", "/v1/status")
        ask(client, "guessed", "GET", "/v1/status")
    with pytest.raises(WebSocketDisconnect):
        connect(client, parts, "guessed", "a", "j")
    ask(client, viewer, "GET", "/v1/status")
    ask(client, OWN, "GET", "/v1/status")
    told = [(e["detail"]["reason"], e["detail"]["token"], e["detail"]["why"]) for e in journal.events]
    assert told == [
        ("role", "v", "token 'v' of role viewer may not POST /v1/evict"),
        ("expired", "old", "token 'old' expired at 1970-01-01 00:16:40 UTC"),
        ("unknown", "", "missing or wrong token for /v1/status"),
    ]
    assert {e["detail"]["sender"] for e in journal.events} == {"testclient"}


@pytest.mark.parametrize("way", [{"headers": {"X-ClickHouse-Key": "{}"}}, {"params": {"password": "{}"}}])
def test_every_way_to_send_a_token_passes_the_gate(client, file, way):
    token = file.create("v", Role.VIEWER, now_ns=1)
    sent = {kind: {k: v.format(token) for k, v in values.items()} for kind, values in way.items()}
    assert client.get("/v1/status", **sent).status_code == 200
    assert client.post("/v1/evict", json={}, **sent).status_code == 403


def connect(client, parts, token, node, job):
    """Connect a node and return the names of the nodes of its job at the hub meanwhile."""
    headers = {"Authorization": f"Bearer {token}"}
    with client.websocket_connect("/v1/agent", headers=headers) as socket:
        socket.send_text(encode(hello(node, job=job)))
        for _ in range(200):
            jobs = [each for each in parts.controller.snapshots() if each.job == job]
            known = [each.name for of in jobs for each in of.nodes]
            if known:
                return known
            time.sleep(0.01)
    return []


def test_only_an_agent_or_an_operator_connects_a_node(client, parts, file):
    tokens = {role: file.create(role, role, now_ns=1) for role in Role}
    with pytest.raises(WebSocketDenialResponse):
        connect(client, parts, tokens[Role.VIEWER], "v", "seen")
    assert connect(client, parts, tokens[Role.AGENT], "a", "first") == ["a"]
    assert connect(client, parts, tokens[Role.OPERATOR], "o", "second") == ["o"]


def test_the_token_of_one_job_connects_no_node_of_another(client, parts, file):
    token = file.create("a", Role.AGENT, job="gpt", now_ns=1)
    headers = {"Authorization": f"Bearer {token}"}
    with client.websocket_connect("/v1/agent", headers=headers) as socket:
        socket.send_text(encode(hello("a", job="other")))
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert (closed.value.code, closed.value.reason) == (1008, "job 'other': the token is for job 'gpt'")
    assert connect(client, parts, token, "b", "gpt") == ["b"]
