"""Who hears of a finding, in which order, and what stays open."""

from dataclasses import replace

import pytest

from pulsetrain.analytics.slowness.open_slowdowns import KEPT
from pulsetrain.analytics.verdict import Healthy
from pulsetrain.hub.reporter import SHOWN_S, Reporter
from tests.hub.fakes import Clock, FakeJob, finding
from tests.recovery.builders import S


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


def test_a_sign_of_a_machine_does_not_come_before_a_hang(site):
    site.reporter.report("j", "hardware", [], [finding("gpu_fault", severity="warning")])
    site.reporter.report("j", "live", [], [finding()])
    assert [f.kind for f in site.reporter.open("j", 0)] == ["hang", "gpu_fault"]


def test_open_findings_are_those_of_the_attempt_the_worst_first(site):
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
    site.reporter.recall([finding(subject="2"), finding(subject="1")])
    assert [f.subject for f in site.reporter.reported()] == ["1", "2", "9"]
    assert len(site.job.observed) == 1


def test_a_finding_that_outlives_the_hub_is_the_same_incident_and_the_job_still_hears_of_it(site):
    recorded, again = finding(ts_ns=500 * S), finding(ts_ns=1000 * S)
    site.reporter.recall([recorded])
    site.reporter.report("j", "live", [again], [again])
    assert site.reporter.reported() == [recorded]
    assert site.writer.written == []
    assert site.job.observed == [again]
    assert site.reporter.since_ns("j", again) == 500 * S


def test_what_was_open_before_a_restart_is_open_with_its_beginning_until_this_hub_has_looked(site):
    recorded, over = finding(ts_ns=500 * S), finding(subject="9", ts_ns=400 * S)
    site.reporter.recall([recorded, over], lambda f: f is recorded)
    assert site.reporter.open("j", 0) == [recorded]
    assert site.reporter.since_ns("j", recorded) == 500 * S
    site.reporter.report("j", "live", [], [])
    assert site.reporter.open("j", 0) == [recorded]
    assert (site.job.observed, site.job.still_open) == ([], [])


def test_what_is_found_in_a_job_that_does_not_run_here_is_kept_once_and_raises_no_alert(site):
    verdicts = [Healthy(analyzer="mfu"), finding(job="old")]
    site.reporter.add("old", verdicts)
    site.reporter.add("old", verdicts)
    assert site.reporter.reported("old") == site.writer.written == [finding(job="old")]
    assert site.reporter.verdicts("old") == verdicts
    assert site.alerts.seen == []


def test_what_was_reported_of_jobs_that_are_over_is_kept_for_a_week():
    clock = Clock()
    jobs = {f"j{i}": FakeJob() for i in range(100)}
    reporter = Reporter(jobs, Writer(), Alerts(), clock)
    for job in jobs:
        reporter.report(job, "live", [finding(job=job)], [])
    for job in list(jobs)[:99]:
        reporter.forget(job)
    reporter.report("j0", "live", [], [finding(job="j0")])  # another job of that name
    clock.now_s += SHOWN_S + 1
    reporter.forget("j98")
    assert {f.job for f in reporter.reported()} == {"j0", "j98", "j99"}


def test_a_slowdown_is_recorded_again_once_it_is_known_what_ends_it(site):
    """The drift had hardly begun when it was named."""
    early = finding("fail_slow", severity="warning")
    later = replace(early, ts_ns=early.ts_ns + 9 * S, evidence={**early.evidence, KEPT: {"limit": 2.0}})
    site.reporter.report("j", "stored", [early], [early])
    for _ in range(2):
        site.reporter.report("j", "stored", [], [later])
    told = replace(later, ts_ns=early.ts_ns)
    assert site.writer.written == [early, told]
    assert site.reporter.reported() == [told]
    assert len(site.alerts.seen) == 1
    site.reporter.recall([told, early])  # the next hub reads both rows
    assert site.reporter.reported() == [told, told]


def test_an_earlier_slowdown_keeps_what_was_recorded_of_it(site):
    early = finding("fail_slow", severity="warning")
    again = replace(early, ts_ns=early.ts_ns + 900 * S, evidence={KEPT: {"limit": 2.0}})
    for new in ([early], [], [again], []):
        site.reporter.report("j", "stored", new, new or [again] * (len(site.writer.written) == 2))
    assert site.writer.written == site.reporter.reported() == [early, again]
