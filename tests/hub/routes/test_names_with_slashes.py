"""A job whose name has a slash is acted on as any other."""

import pytest

from pulsetrain.hub.routes import hangs, links, moves, profiles, ranks, ras, stacks, updates
from tests.hub.fakes import TOKEN, Client

BODY = {"reason": "noon", "actor": "ann"}
ASKED = [
    ("POST", "moves", BODY | {"what": "preempt"}),
    ("POST", "updates", BODY | {"what": "revert"}),
    ("GET", "pending_hang", None),
    ("POST", "pending_hang", BODY | {"decision": "now"}),
    ("GET", "ranks/3", None),
    ("GET", "stacks", None),
    ("POST", "stacks", BODY),
    ("GET", "ras", None),
    ("POST", "ras", BODY),
    ("POST", "profile", BODY | {"ranks": [0], "steps": 1}),
    ("POST", "links", BODY),
]


class Hub:
    """Keeps of which job it is asked."""

    def __init__(self):
        self.asked = []

    def _answer(self, job, *more, **options):
        self.asked.append(job)
        return {"job": job}

    def expect(self, job, seen):
        """Nothing was looked at before."""

    async def _answer_late(self, job, *more, **options):
        return self._answer(job)

    move = update = pending_hang = decide_hang = rank = latest = _answer
    resize = take = measure = _answer_late


@pytest.mark.parametrize("written", ["team/gpt", "team%2Fgpt"])
@pytest.mark.parametrize(("method", "what", "body"), ASKED)
def test_every_question_about_a_job_finds_the_job(method, what, body, written):
    hub = Hub()
    parts = (hangs, links, moves, profiles, ranks, ras, stacks, updates)
    client = Client([route for part in parts for route in part.routes(hub, TOKEN)])
    path = f"/v1/jobs/{written}/{what}"
    reply = client.get(path) if method == "GET" else client.post(path, json=body)
    assert (reply.status_code, reply.json(), hub.asked) == (200, {"job": "team/gpt"}, ["team/gpt"])


def test_a_job_may_be_named_as_a_question_is():
    hub = Hub()
    client = Client([*ranks.routes(hub, TOKEN), *stacks.routes(hub, TOKEN)])
    assert client.get("/v1/jobs/stacks/ranks/3").json() == {"job": "stacks"}
    assert client.get("/v1/jobs/ranks/stacks").json() == {"job": "ranks"}
    assert client.get("/v1/jobs/a/ranks/3/stacks").json() == {"job": "a/ranks/3"}
