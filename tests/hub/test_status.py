"""What `pulsetrain status` shows."""

import json
from types import SimpleNamespace

from pulsetrain import __version__
from pulsetrain.analytics.verdict import Failed, Inconclusive
from pulsetrain.hub.leadership import Alone
from pulsetrain.hub.loops import LoopTable
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.status import StatusReport
from tests.hub.fakes import Clock, FakeJob, finding
from tests.hub.test_loops import loop
from tests.hub.test_reporter import Alerts, Writer
from tests.recovery.builders import S


def test_hub_jobs_and_loops_are_in_one_json_object():
    facts, jobs = {"url": "http://hub"}, {"j": FakeJob()}
    reporter = Reporter(jobs, Writer(), Alerts(), Clock())
    reporter.report("j", "live", [finding()], [finding()])
    reporter.detectors("j", 0, [Inconclusive(analyzer="mfu", reason="no device", blind=True)])
    works = Inconclusive(analyzer="hang", reason="rank 0 moves 5 MB/s")
    steps = SimpleNamespace(
        median_step_ns=lambda job: 1_500_000_000, verdicts=lambda job: (works, finding("hang"))
    )
    rows = SimpleNamespace(written_rows=7, failed_rows=2)
    table = LoopTable([lambda: [loop("controller", failures=4)]], jobs)
    past = SimpleNamespace(rows=lambda: [{"job": "old"}])
    ranking = SimpleNamespace(slowest=lambda job, attempt: {"steps": 30, "ranks": [], "nodes": []})
    report = StatusReport(
        facts, jobs, reporter, steps, rows, table, past, ranking, Clock(), Alone("http://hub")
    )
    facts["dashboard"] = "http://later"
    status = report.status()
    assert json.loads(json.dumps(status)) == status
    assert status["hub"] == {
        "url": "http://hub", "dashboard": "http://later", "version": __version__, "watch_failures": 4,
        "written_rows": 7, "unwritten_rows": 2, "now_ns": 1000 * S,
        "role": "alone", "leader": "http://hub",
    }  # fmt: skip
    (job,) = status["jobs"]
    assert (job["job"], job["state"], job["verdict"]["state"]) == ("j", "running", "hung")
    assert [(f["kind"], f["since_ns"]) for f in job["findings"]] == [("hang", 1000 * S)]
    assert status["past_jobs"] == [{"job": "old"}]
    assert [(d["analyzer"], d["state"]) for d in job["detectors"]] == [
        ("hang", "inconclusive"), ("mfu", "blind"),
    ]  # fmt: skip
    reporter.report("j", "live", [], [])
    reporter.detectors("j", 0, [Failed(analyzer="mfu", error="no answer")])
    sentence = report.status()["jobs"][0]["verdict"]["sentence"]
    assert sentence.endswith("Not seen: mfu failed (no answer).")
    assert (job["median_step_s"], job["slowest"]["steps"]) == (1.5, 30)
    assert [(row["process"], row["loop"], row["failures"]) for row in status["loops"]] == [
        ("hub", "controller", 4)
    ]
