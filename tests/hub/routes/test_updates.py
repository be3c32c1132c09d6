"""Updating the program of a job over HTTP."""

import pytest

from pulsetrain.hub.routes import updates
from tests.hub.fakes import TOKEN, Client

PATH = "/v1/jobs/j/updates"
APPLY = {"what": "apply", "reason": "a fix", "actor": "ann"}


class Controller:
    """Keeps what is asked for."""

    def __init__(self):
        self.asked = []

    def update(self, name, request, *, dry_run=False):
        self.asked.append((name, request, dry_run))
        return {"job": name, "what": request.what, "dry_run": dry_run}


@pytest.fixture
def site():
    class Site:
        controller = Controller()
        client = Client(updates.routes(controller, TOKEN))

    return Site


def test_an_update_is_asked_for_in_the_persons_name(site):
    body = {"argv": ["b.py", "--lr", "2"], "environment": {"K": "1"}, "within_s": 0}
    reply = site.client.post(PATH, json=APPLY | body)
    assert reply.json() == {"job": "j", "what": "apply", "dry_run": False}
    [(job, request, dry_run)] = site.controller.asked
    assert (job, request.actor, request.reason, dry_run) == ("j", "ann", "a fix", False)
    assert (request.argv, request.environment, request.within_s) == (["b.py", "--lr", "2"], {"K": "1"}, 0.0)


def test_without_a_time_the_hubs_own_holds_and_a_dry_run_is_passed_on(site):
    site.client.post(PATH, json=APPLY | {"dry_run": True})
    [(_, request, dry_run)] = site.controller.asked
    assert (request.within_s, request.argv, request.environment, dry_run) == (None, [], {}, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"what": "restart"}, "apply, revert, cancel"),
        ({"reason": ""}, "reason"),
        ({"actor": None}, "actor"),
        ({"within_s": "soon"}, "not a number"),
        ({"within_s": -1}, "within_s = -1.0"),
        ({"argv": "b.py"}, "a list of texts"),
        ({"argv": ["b.py", 5]}, "a list of texts"),
        ({"argv": ["b.py", "a\nb"]}, "argument 1"),
        ({"environment": {"K": 5}}, "texts by the names"),
        ({"environment": {"RANK": "5"}}, "RANK"),
        ({"what": "revert", "argv": ["b.py"]}, "revert takes no program"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(site, change, words):
    reply = site.client.post(PATH, json=APPLY | change)
    assert reply.status_code == 400
    assert words in reply.json()["error"]
    assert site.controller.asked == []


def test_no_refusal_has_the_value_of_a_variable(site):
    for environment in ({"K": "hunter\n2"}, {"RANK": "hunter2"}, {"1K": "hunter2"}, {"K": ["hunter2"]}):
        reply = site.client.post(PATH, json=APPLY | {"environment": environment})
        assert reply.status_code == 400
        assert "hunter" not in reply.text
