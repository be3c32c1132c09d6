"""The pending hang of a job over HTTP."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import hangs
from pulsetrain.recovery.seen import Seen
from tests.hub.fakes import TOKEN, Client

PATH = "/v1/jobs/j/pending_hang"
WAIT = {"decision": "wait", "reason": "debugging", "actor": "ann", "seconds": 60}


class Controller:
    """Knows job j and keeps what is decided."""

    expected = ()

    def expect(self, name, seen, node=""):
        if seen != Seen():
            self.expected = (name, seen, node)
            raise UsageError("it has changed, look again")

    def __init__(self):
        self.decided = []

    def pending_hang(self, name):
        if name != "j":
            raise UsageError(f"no job {name!r} runs here; jobs here: j")
        return {"job": name, "pending_hang": None}

    def decide_hang(self, name, decision, *, dry_run=False):
        if not dry_run:
            self.decided.append((name, decision.what, decision.seconds, decision.actor))
        return self.pending_hang(name) | {"decision": decision.what, "dry_run": dry_run}


@pytest.fixture
def site():
    class Site:
        controller = Controller()
        client = Client(hangs.routes(controller, TOKEN))

    return Site


def test_what_is_pending_can_be_asked_for(site):
    assert site.client.get(PATH).json() == {"job": "j", "pending_hang": None}


def test_a_decision_is_made_in_the_persons_name(site):
    assert site.client.post(PATH, json=WAIT).json()["decision"] == "wait"
    assert site.controller.decided == [("j", "wait", 60.0, "ann")]


def test_a_decision_on_another_hang_is_refused(site):
    began_ns = 1_790_000_000_000_000_001
    answer = site.client.post(PATH, json=WAIT | {"seen": {"rank": 3, "since_ns": began_ns}})
    assert (answer.status_code, site.controller.decided) == (400, [])
    assert site.controller.expected == ("j", Seen(rank=3, since_ns=began_ns), "")


def test_a_dry_run_decides_nothing(site):
    assert site.client.post(PATH, json=WAIT | {"dry_run": True}).json()["dry_run"]
    assert site.controller.decided == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decision": "later"}, "wait or now"),
        ({"reason": ""}, "reason"),
        ({"actor": None}, "actor"),
        ({"seconds": "x"}, "not a number"),
        ({"seconds": 0}, "above 0"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(site, change, words):
    answer = site.client.post(PATH, json=WAIT | change)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_an_unknown_job_and_a_wrong_token_are_refused(site):
    assert site.client.get("/v1/jobs/q/pending_hang").status_code == 400
    assert site.client.get(PATH, token="wrong").status_code == 401
    assert site.client.post(PATH, json=WAIT, token="wrong").status_code == 401
