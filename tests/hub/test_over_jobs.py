"""Jobs that have been over for a while are forgotten once they are on record."""

import asyncio

import pytest

from pulsetrain.hub import check_watch
from pulsetrain.hub.over_jobs import KEPT_S, UNRECORDED_KEPT_S, OverJobs
from pulsetrain.hub.reporter import Reporter
from tests.hub.fakes import Clock, FakeJob, finding
from tests.hub.test_reporter import Alerts, Writer


class Jobs:
    def __init__(self, **over_s):
        self.over, self.forgotten = over_s, []

    def over_s(self):
        return dict(self.over)

    def forget(self, job):
        self.forgotten.append(job)


def forgotten(over_s, *, recorded=True, source="live"):
    """Which jobs the controller and the others are told to forget."""
    reporter = Reporter({"j": FakeJob()}, Writer(), Alerts(), Clock())
    reporter.report("j", source, [finding()], [finding()])
    jobs, told = Jobs(j=over_s), []
    turn = OverJobs(jobs, lambda job: recorded, reporter, [told.append]).turn
    asyncio.run(turn())
    assert told == jobs.forgotten
    return told


@pytest.mark.parametrize(
    ("over_s", "recorded", "source", "expected"),
    [
        (KEPT_S, True, "live", ["j"]),
        (KEPT_S - 1, True, "live", []),
        (KEPT_S, False, "live", []),
        (UNRECORDED_KEPT_S, False, "live", ["j"]),
        (UNRECORDED_KEPT_S, True, check_watch.SOURCE, []),  # a machine that failed a check is still broken
    ],
)
def test_a_job_is_forgotten_an_hour_after_its_end(over_s, recorded, source, expected):
    assert forgotten(over_s, recorded=recorded, source=source) == expected


def test_nothing_is_open_of_a_job_that_was_forgotten():
    reporter = Reporter({"j": FakeJob()}, Writer(), Alerts(), Clock())
    reporter.report("j", "live", [finding()], [finding()])
    reporter.forget("j")
    assert (reporter.open("j", 0), reporter.all_open(), reporter.verdicts("j")) == ([], [], [])
    assert reporter.reported("j") == [finding()]
