"""The hub's routes for alerts, silences, incidents and stacks, without processes."""

import asyncio
from collections import deque
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.verdict import Finding
from pulsetrain.hub.app import LONGEST_SILENCE_S, _api
from pulsetrain.hub.stacks import Stacks
from tests.hub.test_stacks import Clock, FakeJob, Journal, S

TOKEN = "let-me-in"


class Client:
    """Asks the application without a socket."""

    def __init__(self, app):
        self._app = app

    def get(self, path, token=TOKEN):
        return self._ask("GET", path, token)

    def post(self, path, json):
        return self._ask("POST", path, TOKEN, json)

    def _ask(self, method, path, token, json=None):
        async def ask():
            headers = {"Authorization": f"Bearer {token}"}
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://hub", headers=headers) as http:
                return await http.request(method, path, json=json)

        return asyncio.run(ask())


def finding(kind="hang", subject="3", ts_ns=1000 * S):
    return Finding(
        ts_ns=ts_ns, job="j", attempt=0, kind=kind, subject_type="rank", subject=subject,
        severity="critical", confidence=0.9, summary=f"{kind} at rank {subject}",
    )  # fmt: skip


@pytest.fixture
def site(tmp_path):
    clock = Clock()
    book = AlertBook(tmp_path / "alerts.db")
    book.topology = Topology()
    book.observe([finding()], clock.wall_ns())
    memory = SimpleNamespace(told=deque([finding(), finding("straggler", "5")]))
    watcher = SimpleNamespace(jobs={"j": memory}, stacks=Stacks(Journal(), clock))
    controller = SimpleNamespace(jobs={"j": FakeJob()})
    parts = SimpleNamespace(alerts=book, clock=clock, token=TOKEN, watcher=watcher, controller=controller)
    yield SimpleNamespace(client=Client(Starlette(routes=_api(parts))), clock=clock)
    book.close()


def alert(site):
    (found,) = site.client.get("/v1/alerts").json()["alerts"]
    return found


def test_a_silence_mutes_until_its_end_or_until_somebody_ends_it(site):
    body = {"actor": "ann", "matchers": {"kind": "hang"}, "seconds": 60, "comment": "known"}
    made = site.client.post("/v1/silences", json=body).json()
    assert "silenced by ann" in alert(site)["muted"]
    site.clock.now_s += 61
    assert alert(site)["muted"] == ""
    assert site.client.get("/v1/silences").json()["silences"] == []
    again = site.client.post("/v1/silences", json=body).json()
    assert again["id"] != made["id"]
    assert site.client.post(f"/v1/silences/{again['id']}/end", json={"actor": "bob"}).status_code == 200
    assert alert(site)["muted"] == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": -1}, "seconds = -1"),
        ({"seconds": LONGEST_SILENCE_S + 1}, "at most"),
        ({"seconds": "soon"}, "'soon'"),
        ({"matchers": {"colour": "red"}}, "colour"),
        ({"matchers": ["kind"]}, "an object"),
        ({"actor": ""}, "actor"),
    ],
)
def test_a_silence_that_makes_no_sense_is_one_line(site, change, words):
    body = {"actor": "ann", "matchers": {"kind": "hang"}, "seconds": 60} | change
    answer = site.client.post("/v1/silences", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_acknowledging_is_in_the_history_of_the_alert(site):
    name = alert(site)["id"]
    site.client.post(f"/v1/alerts/{name}/ack", json={"actor": "ann", "note": "cable"})
    history = site.client.get(f"/v1/alerts/{name}/history").json()["history"]
    assert [(h["state"], h["actor"], h["note"]) for h in history][-1] == ("acknowledged", "ann", "cable")


def test_incidents_are_stories(site):
    (story,) = site.client.get("/v1/incidents").json()["incidents"]
    assert (story["root"], story["state"]) == ("rank 3", "open")


def test_stacks_are_taken_and_kept_and_an_unknown_job_is_one_line(site):
    assert site.client.get("/v1/jobs/j/stacks").json() == {}
    assert site.client.post("/v1/jobs/j/stacks", json={"actor": "ann"}).json()["outliers"] == "3"
    assert site.client.get("/v1/jobs/j/stacks").json()["why"] == "ann"
    refused = site.client.get("/v1/jobs/k/stacks")
    assert (refused.status_code, refused.json()["error"]) == (400, "no job 'k' runs here; jobs here: j")


def test_everything_asks_for_the_token(site):
    for path in ("alerts", "silences", "incidents", "jobs/j/stacks", "alerts/x/history"):
        assert site.client.get(f"/v1/{path}", token="no").status_code == 401
