"""The application: all routes behind the token, and loops that run while it serves."""

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.hub import app as hub_app
from pulsetrain.hub.app import api, build
from pulsetrain.hub.leadership import Alone, Role
from tests.hub.fakes import Client, finding


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


async def takes_the_lead(parts, monkeypatch, past_findings):
    """Serve as a hub that waits, then leads, until its loops run."""
    monkeypatch.setattr(hub_app, "records", lambda parts: [])
    monkeypatch.setattr(hub_app, "GUARD_S", 0.001)
    leadership = Alone("http://hub")
    leadership.role = Role.WAITING
    parts = replace(parts, leadership=leadership, past_findings=past_findings)
    async with build(parts).router.lifespan_context(None):
        await asyncio.sleep(0.01)
        assert not parts.loops.started
        leadership.role = Role.LEADER
        while not parts.loops.started:
            await asyncio.sleep(0.001)
    return parts


def test_a_hub_that_takes_the_lead_knows_what_the_last_leader_found(parts, monkeypatch):
    asyncio.run(takes_the_lead(parts, monkeypatch, lambda: [finding()]))
    assert parts.reporter.reported() == [finding()]


def test_a_hub_takes_the_lead_without_its_store(parts, monkeypatch):
    def away():
        raise Unavailable("away")

    asyncio.run(takes_the_lead(parts, monkeypatch, away))
    assert parts.reporter.reported() == []
