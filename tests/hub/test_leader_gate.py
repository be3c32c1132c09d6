"""What a hub answers while another one leads."""

from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from pulsetrain.hub.leader_gate import LeaderGate
from pulsetrain.hub.leadership import Role

PATHS = ("/ping", "/metrics", "/v1/status", "/v1/evict", "/v1/records", "/")


@pytest.fixture
def leadership():
    return SimpleNamespace(role=Role.WAITING, leader=lambda: "http://a")


@pytest.fixture
def client(leadership):
    async def answer(request):
        return PlainTextResponse("ok")

    async def agent(socket):
        await socket.accept()
        await socket.close()

    routes = [Route(path, answer, methods=["GET", "POST"]) for path in PATHS]
    routes.append(WebSocketRoute("/v1/agent", agent))
    app = Starlette(routes=routes, middleware=[Middleware(LeaderGate, leadership=leadership)])
    return TestClient(app)


def test_a_hub_that_waits_shows_itself_and_takes_nothing(client):
    assert {path: client.post(path).status_code for path in PATHS} == {
        "/ping": 200, "/metrics": 200, "/v1/status": 200, "/v1/evict": 503, "/v1/records": 503, "/": 503,
    }  # fmt: skip
    assert client.post("/v1/evict").json() == {
        "error": "this hub is waiting; the leader is http://a",
        "leader": "http://a",
    }


def test_an_agent_is_told_to_try_again_and_not_that_its_token_is_wrong(client):
    with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect("/v1/agent"):
        pass
    assert refused.value.status_code == 503


def test_a_load_balancer_finds_the_leader(client, leadership):
    assert (client.get("/v1/leader").status_code, client.get("/v1/leader").json()["role"]) == (503, "waiting")
    leadership.role = Role.LEADER
    assert client.get("/v1/leader").status_code == 200
    assert client.post("/v1/evict").status_code == 200
    with client.websocket_connect("/v1/agent"):
        pass
    leadership.role = Role.DEPOSED
    assert client.post("/v1/records").status_code == 503
