"""Jobs that the hub does not run: how they ended, and what a recording shows."""

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.hub.past_jobs import LOOK_S, PastJobs, summarize_past
from pulsetrain.hub.past_store import PastJob
from pulsetrain.hub.reporter import Reporter
from tests.hub.fakes import Clock, finding
from tests.hub.test_reporter import Alerts, Writer

RECORDING = PastJob(job="j", attempt=0, first_step=0, last_step=9, last_ns=5, ranks=8)
SLOW = finding("straggler", severity="warning")


class Records:
    def __init__(self):
        self.all, self.verdicts, self.judged = [RECORDING], [SLOW], []

    def jobs(self):
        return list(self.all)

    def judge(self, job, now_ns):
        self.judged.append(job.last_step)
        return self.verdicts


class Journal:
    def __init__(self):
        self.events = []

    def event(self, kind, **more):
        self.events.append((kind, more["detail"]["last_step"]))


class Site:
    def __init__(self, running=()):
        self.records, self.journal, clock = Records(), Journal(), Clock()
        self.reporter = Reporter({}, Writer(), Alerts(), clock)
        self.past = PastJobs(set(running), self.records, self.reporter, self.journal, clock)

    def turn(self, times=1):
        for _ in range(times):
            assert asyncio.run(self.past.turn()) == LOOK_S
        return self.past.rows()


def test_a_recording_is_judged_once_it_has_stopped_to_grow():
    site = Site()
    (row,) = site.turn()
    assert row["verdict"]["sentence"] == "Recorded up to step 9, 8 ranks: not judged yet."
    site.records.all = [replace(RECORDING, last_step=12)]
    site.turn()
    assert site.records.judged == []
    (row,) = site.turn(2)
    assert site.records.judged == [12]
    assert row["verdict"]["state"] == "slow"
    assert row["verdict"]["sentence"] == "straggler at rank 3 Recorded up to step 12, 8 ranks."
    assert [f["subject"] for f in row["findings"]] == ["3"]
    assert site.journal.events == [("judged", 12)]


def test_what_was_judged_is_remembered_as_long_as_the_job_is_shown():
    site = Site()
    site.turn(3)
    assert site.past._judged == {("j", RECORDING.attempt): RECORDING.last_step}
    site.records.all = []
    site.turn()
    assert site.past._judged == {}


def test_a_recording_that_an_earlier_hub_judged_is_not_judged_again():
    site = Site()
    site.records.all = [replace(RECORDING, judged_step=9)]
    site.reporter.recall([SLOW])
    (row,) = site.turn(3)
    assert site.records.judged == []
    assert row["verdict"]["state"] == "slow"


def test_a_job_of_this_hub_is_no_past_job():
    assert Site(running=["j"]).turn(3) == []


@pytest.mark.parametrize(
    ("changes", "state", "sentence"),
    [
        ({"ending": "job_finished"}, "finished", "Finished after step 9."),
        ({"ending": "job_ended", "reason": "job ended by SIGINT"}, "ended", "Ended by SIGINT, after step 9."),
        ({"ending": "job_failed", "reason": "job failed: x"}, "failed", "Failed: x, after step 9."),
        (
            {"ending": "attempt_started"},
            "no_data",
            "No agent of this job is connected. Its last step on record is 9.",
        ),
    ],
)
def test_a_job_that_a_hub_ran_says_how_it_ended(changes, state, sentence):
    summary = summarize_past(replace(RECORDING, **changes), [SLOW])
    assert (summary["state"], summary["sentence"]) == (state, sentence)
