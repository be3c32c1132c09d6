"""Moving a job over HTTP."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import moves
from pulsetrain.recovery.seen import Seen
from tests.hub.fakes import TOKEN, Client

PATH = "/v1/jobs/j/moves"
PREEMPT = {"what": "preempt", "reason": "noon", "actor": "ann"}


class Controller:
    """Keeps what is asked for."""

    expected = ()

    def expect(self, name, seen, node=""):
        if seen != Seen():
            self.expected = (name, seen, node)
            raise UsageError("it has changed, look again")

    def __init__(self):
        self.asked = []

    def move(self, name, request, *, dry_run=False):
        self.asked.append((name, request, dry_run))
        return {"job": name, "what": request.what, "dry_run": dry_run}

    async def resize(self, name, request, *, dry_run=False):
        self.asked.append((name, request, dry_run))
        return {"job": name, "devices": request.devices}


@pytest.fixture
def site():
    class Site:
        controller = Controller()
        client = Client(moves.routes(controller, TOKEN))

    return Site


def test_a_move_is_asked_for_in_the_persons_name(site):
    reply = site.client.post(PATH, json=PREEMPT | {"wait_s": 5, "lose_progress": True})
    assert reply.json() == {"job": "j", "what": "preempt", "dry_run": False}
    [(job, request, dry_run)] = site.controller.asked
    assert (job, request.actor, request.wait_s, request.lose_progress, dry_run) == (
        "j",
        "ann",
        5.0,
        True,
        False,
    )


def test_a_move_of_another_attempt_is_refused(site):
    answer = site.client.post(PATH, json=PREEMPT | {"seen": {"attempt": 3}})
    assert (answer.status_code, site.controller.asked) == (400, [])
    assert site.controller.expected == ("j", Seen(attempt=3), "")


def test_a_resize_has_a_whole_number_of_devices(site):
    resize = {**PREEMPT, "what": "resize"}
    assert site.client.post(PATH, json=resize | {"devices": 4}).json() == {"job": "j", "devices": 4}
    refused = site.client.post(PATH, json=resize | {"devices": 2.5})
    assert refused.status_code == 400
    assert "devices = 2.5: allowed: whole numbers" in refused.text


def test_a_job_is_resumed_on_named_nodes(site):
    resume = {**PREEMPT, "what": "resume"}
    site.client.post(PATH, json=resume | {"nodes": ["c", "d"]})
    assert site.controller.asked[-1][1].nodes == ("c", "d")
    refused = site.client.post(PATH, json=resume | {"nodes": "c,d"})
    assert refused.status_code == 400
    assert "nodes = 'c,d': allowed: a list of names" in refused.text


def test_a_dry_run_is_passed_on(site):
    site.client.post(PATH, json={**PREEMPT, "what": "migrate", "node": "b", "dry_run": True})
    [(_, request, dry_run)] = site.controller.asked
    assert (request.node, request.wait_s, dry_run) == ("b", 60.0, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"what": "pause"}, "preempt, resume, migrate, resize"),
        ({"reason": ""}, "reason"),
        ({"actor": None}, "actor"),
        ({"wait_s": "soon"}, "not a number"),
        ({"what": "migrate"}, "needs the node"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(site, change, words):
    reply = site.client.post(PATH, json=PREEMPT | change)
    assert reply.status_code == 400
    assert words in reply.json()["error"]
    assert site.controller.asked == []
