"""Who hears of a finding, in which order, and what stays open."""

import pytest

from pulsetrain.analytics.verdict import Healthy
from pulsetrain.hub.reporter import Reporter
from tests.hub.fakes import Clock, FakeJob, finding


class Writer:
    def __init__(self, error=None):
        self.written, self.error = [], error

    def finding(self, finding):
        if self.error:
            raise self.error
        self.written.append(finding)


class Alerts:
    def __init__(self):
        self.seen = []

    def observe(self, verdicts, now_ns, *, job=""):
        self.seen.append((job, list(verdicts)))


@pytest.fixture
def site():
    class Site:
        job, writer, alerts = FakeJob(), Writer(), Alerts()
        reporter = Reporter({"j": job}, writer, alerts, Clock())

    return Site


def test_a_new_finding_reaches_the_job_the_store_the_alerts_and_the_incidents(site):
    site.reporter.report("j", "live", [finding()], [finding()])
    assert site.job.observed == site.writer.written == [finding()]
    assert site.alerts.seen == [("j", [finding()])]
    assert site.reporter.reported() == [finding()]


def test_a_finding_that_only_stays_open_is_not_sent_again(site):
    site.reporter.report("j", "live", [], [finding()])
    assert (site.job.observed, site.writer.written, site.alerts.seen) == ([], [], [])
    assert site.job.still_open == [finding()]
    assert site.reporter.open("j", 0) == [finding()]


def test_open_findings_are_those_of_the_attempt_live_ones_first(site):
    slow, old = finding("straggler"), finding("straggler", attempt=-1)
    site.reporter.report("j", "stored", [], [slow, old])
    site.reporter.report("j", "live", [], [finding()])
    assert [f.kind for f in site.reporter.open("j", 0)] == ["hang", "straggler"]
    site.reporter.report("j", "live", [], [])
    assert [f.kind for f in site.reporter.open("j", 0)] == ["straggler"]
    assert site.reporter.open("k", 0) == []


def test_the_job_decides_even_if_the_store_is_away():
    job, alerts = FakeJob(), Alerts()
    reporter = Reporter({"j": job}, Writer(RuntimeError("full")), alerts, Clock())
    with pytest.raises(RuntimeError, match="full"):
        reporter.report("j", "live", [finding()], [finding()])
    assert job.observed == [finding()]
    assert alerts.seen == [("j", [finding()])]


def test_detectors_keep_the_alerts_of_open_findings_alive(site):
    site.reporter.report("j", "live", [], [finding()])
    healthy = Healthy(analyzer="mfu")
    site.reporter.detectors("j", 0, [healthy, finding("straggler")])
    assert site.alerts.seen == [("j", [healthy, finding()])]
    assert site.reporter.verdicts("j") == [healthy, finding("straggler")]


def test_findings_of_earlier_hubs_come_before_those_of_this_one(site):
    site.reporter.report("j", "live", [finding(subject="9")], [])
    site.reporter.recall("j", [finding(subject="2"), finding(subject="1")])
    assert [f.subject for f in site.reporter.reported()] == ["1", "2", "9"]
    assert len(site.job.observed) == 1
