"""Nodes and evictions over HTTP."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import nodes
from pulsetrain.recovery.seen import Seen
from tests.hub.fakes import TOKEN, Client, Clock
from tests.recovery.builders import job_snapshot


class Controller:
    """Knows node b and keeps what it is asked to evict."""

    expected = ()

    def expect(self, name, seen, node=""):
        if seen != Seen():
            self.expected = (name, seen, node)
            raise UsageError("it has changed, look again")

    def __init__(self):
        self.evicted, self.jobs = [], []

    def snapshots(self):
        return [job_snapshot()]

    def preview_eviction(self, name, *, job, drain):
        self.jobs.append(job)
        if name != "b":
            raise UsageError(f"no node {name!r}; nodes here: b")
        return {"node": name, "lost_steps": 3, "scheduler": ["drain b"] if drain else []}

    async def evict(self, name, reason, actor, *, job, drain):
        cost = self.preview_eviction(name, job=job, drain=drain)
        self.evicted.append((name, reason, actor, drain))
        return cost


@pytest.fixture
def site():
    class Site:
        controller = Controller()
        clock = Clock()
        client = Client(nodes.routes(controller, clock, TOKEN))

    return Site


EVICT = {"node": "b", "reason": "fan", "actor": "ada"}


def test_every_node_of_every_job_is_a_row(site):
    rows = site.client.get("/v1/nodes").json()["nodes"]
    assert [(row["node"], row["ranks"]) for row in rows] == [("a", [0, 1]), ("b", [2, 3])]


def test_a_dry_run_evicts_nobody(site):
    answer = site.client.post("/v1/evict", json=EVICT | {"dry_run": True})
    assert (answer.json()["lost_steps"], site.controller.evicted) == (3, [])


def test_an_eviction_is_done_in_the_persons_name(site):
    assert site.client.post("/v1/evict", json=EVICT).json()["node"] == "b"
    assert site.controller.evicted == [("b", "fan", "ada", False)]


def test_an_eviction_drains_the_node_where_that_is_asked_for(site):
    dry = site.client.post("/v1/evict", json=EVICT | {"drain": True, "dry_run": True})
    assert dry.json()["scheduler"] == ["drain b"]
    site.client.post("/v1/evict", json=EVICT | {"drain": True})
    assert site.controller.evicted == [("b", "fan", "ada", True)]


def test_an_eviction_is_refused_where_what_was_seen_has_changed(site):
    answer = site.client.post("/v1/evict", json=EVICT | {"seen": {"attempt": 3, "state": "active"}})
    assert (answer.status_code, site.controller.evicted) == (400, [])
    assert site.controller.expected == ("", Seen(attempt=3, state="active"), "b")
    wrong = site.client.post("/v1/evict", json=EVICT | {"seen": {"attempt": "3"}})
    assert "seen.attempt = '3'" in wrong.json()["error"]


def test_an_eviction_may_name_the_job_of_the_node(site):
    for more in ({"dry_run": True}, {}):
        assert site.client.post("/v1/evict", json=EVICT | {"job": "j"} | more).status_code == 200
    assert site.controller.jobs == ["j", "j"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"node": "q"}, "no node 'q'"), ({"reason": ""}, "reason"), ({"actor": None}, "actor")],
)
def test_an_eviction_that_makes_no_sense_is_one_line(site, change, words):
    answer = site.client.post("/v1/evict", json=EVICT | change)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_nodes_and_evictions_ask_for_the_token(site):
    assert site.client.get("/v1/nodes", token="no").status_code == 401
    assert site.client.post("/v1/evict", json=EVICT, token="no").status_code == 401
    assert site.controller.evicted == []


def test_after_an_eviction_the_nodes_are_looked_at_anew(site, monkeypatch):
    looks = []

    def snapshots():
        site.clock.now_s += 0.1
        looks.append(1)
        return [job_snapshot()]

    monkeypatch.setattr(site.controller, "snapshots", snapshots)
    for _ in range(3):
        site.client.get("/v1/nodes")
    assert len(looks) == 1
    site.client.post("/v1/evict", json=EVICT)
    site.client.get("/v1/nodes")
    assert len(looks) == 2
