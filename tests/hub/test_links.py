"""Rounds over links that a person asks for."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics.link_search import Culprit, SearchVerdict
from pulsetrain.hub.links import Links
from pulsetrain.recovery.link_checks import LinkReport
from tests.recovery.builders import job_snapshot

SLOW = Culprit(kind="port", name="b/net", node="b", reason="out: 40% of the usual rate")
REPORT = LinkReport(verdict=SearchVerdict(culprits=(SLOW,), rounds=3, transfers=9), nodes=list("abc"))


class Job:
    def __init__(self):
        self.asked = []

    def snapshot(self):
        return job_snapshot()

    async def measure_links(self, options, actor):
        self.asked.append((options.bits_per_s, actor))
        return REPORT


def test_the_answer_has_what_was_named_and_what_it_took():
    job = Job()
    answer = asyncio.run(Links({"j": job}).measure("j", actor="ann", limit_mbit=100))
    assert job.asked == [(1e8, "ann")]
    assert answer["named"] == [SLOW.row()]
    facts = {key: answer[key] for key in ("job", "attempt", "phase", "state", "rounds", "nodes")}
    assert facts == {
        "job": "j", "attempt": 0, "phase": "running", "state": "found", "rounds": 3, "nodes": list("abc"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("job", "limit", "words"),
    [("k", 0.0, "no job 'k' runs here; jobs here: j"), ("j", -1, "limit_mbit = -1")],
)
def test_what_cannot_be_is_refused_in_one_line(job, limit, words):
    with pytest.raises(UsageError, match=words):
        asyncio.run(Links({"j": Job()}).measure(job, actor="ann", limit_mbit=limit))
