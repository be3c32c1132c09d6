"""Incidents over HTTP."""

import asyncio
import threading

from starlette.requests import Request

from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.hub.notifier import topology
from pulsetrain.hub.routes import incidents
from tests.hub.fakes import TOKEN, Client, Clock, finding
from tests.recovery.builders import job_snapshot

FOUND = [finding(), finding("straggler", "5")]


def client(now_s=1000.0, still_open=()):
    places = topology([job_snapshot()])
    return Client(incidents.routes(lambda: FOUND, lambda: still_open, lambda: places, Clock(now_s), TOKEN))


CLIENT = client()


def test_findings_of_one_trouble_are_one_incident():
    (incident,) = CLIENT.get("/v1/incidents").json()["incidents"]
    assert (incident["root"], incident["state"]) == ("rank 3", "open")


def test_incidents_ask_for_the_token():
    assert CLIENT.get("/v1/incidents", token="no").status_code == 401


def test_an_incident_stays_open_as_long_as_its_finding_does():
    later_s = 1000.0 + 3600.0
    states = [
        client(later_s, still_open).get("/v1/incidents").json()["incidents"][0]["state"]
        for still_open in ((), [finding(ts_ns=int(later_s * 1e9))])
    ]
    assert states == ["over", "open"]


def test_joining_many_findings_does_not_hold_up_the_hub(monkeypatch):
    beaten = threading.Event()

    def slow(*findings, **more):
        assert beaten.wait(5), "the event loop stands still"
        return []

    monkeypatch.setattr(incidents, "join", slow)
    (route,) = incidents.routes(list, list, Topology, Clock(), TOKEN)

    async def story():
        scope = {"type": "http", "method": "GET", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}
        asking = asyncio.create_task(route.endpoint(Request(scope)))
        await asyncio.sleep(0.01)
        beaten.set()
        return await asking

    assert asyncio.run(story()).status_code == 200
