"""The application: all routes behind the token, and loops that run while it serves."""

import asyncio

import pytest

from pulsetrain.hub.app import api, build
from tests.hub.fakes import Client


@pytest.fixture
def parts(hub):
    made = hub.make()
    yield made
    made.alerts.close()


def test_every_route_asks_for_the_token(parts):
    routes = [r for r in api(parts) if r.path != "/v1/agent"]
    client = Client(routes)
    for route in routes:
        path = route.path.replace("{", "").replace("}", "")
        ask = client.get if "GET" in route.methods else lambda path, **more: client.post(path, {}, **more)
        assert ask(path, token="no").status_code == 401, path
    assert len(routes) >= 12


def test_the_loops_run_while_the_application_serves(parts, monkeypatch):
    monkeypatch.setattr("pulsetrain.hub.app.records", lambda parts: [])
    app = build(parts)

    async def scenario():
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            running = [t.get_name() for t in asyncio.all_tasks()]
        ended = [t.get_name() for t in asyncio.all_tasks()]
        return running, ended

    running, ended = asyncio.run(scenario())
    names = {
        row["loop"] for row in parts.report.status()["loops"] if row["loop"] not in ("event writer", "intake")
    }
    assert names <= set(running)
    assert not names & set(ended)
