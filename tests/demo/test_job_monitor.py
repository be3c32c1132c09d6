"""What the demo reads from a hub, and what it prints of it."""

from __future__ import annotations

import json

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.demo import job_monitor
from pulsetrain.demo.job_monitor import JobMonitor, JobStatus

RECOVERY = {
    "ts_ns": 5,
    "kind": "recovery",
    "node": "",
    "rank": -1,
    "actor": "controller",
    "detail": json.dumps({"total_ns": 2_000_000_000, "reason": "hang", "resumed_step": 7}),
}
HANG = {
    "ts_ns": 6,
    "kind": "hang",
    "subject_type": "rank",
    "subject": "5",
    "summary": "rank 5 is stopped",
    "confidence": 0.99,
}


class Rows(list):
    """As an Arrow table."""

    def to_pylist(self):
        return list(self)


class Hub:
    """A hub's status and its rows; `written` counts the rows."""

    def __init__(self):
        self.step, self.state, self.away, self.reads = -1, "running", False, 0
        self.events, self.findings = Rows(), Rows()

    def status(self):
        if self.away:
            raise Unavailable("hub is away")
        job = {
            "job": "gpt",
            "state": self.state,
            "attempt": 1,
            "step": self.step,
            "nodes": [{"node": "a", "ranks": [0, 1]}],
        }
        other = job | {"job": "other", "step": 999}
        written = len(self.events) + len(self.findings)
        return {"hub": {"written_rows": written}, "jobs": [other, job]}

    def close(self): ...


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()

    class Queries:
        def events_since(self, store, job, since_ns):
            store.reads += 1
            return store.events

        def findings_since(self, store, job, since_ns):
            return store.findings

        def loss(self, store, job, step):
            return 2.5 if step < 20 else None

    monkeypatch.setattr(job_monitor, "queries", Queries())
    return hub


@pytest.fixture
def lines():
    return []


@pytest.fixture
def monitor(hub, lines):
    return JobMonitor(hub, hub, "gpt", lambda who, what: lines.append((who, what)))


def test_the_status_is_that_of_the_job_and_not_of_another(hub, monitor):
    assert monitor.status == JobStatus()
    hub.step = 3
    monitor.poll()
    assert (monitor.status.step, monitor.status.attempt, monitor.status.ranks) == (3, 1, {"a": (0, 1)})


def test_each_event_and_finding_is_taken_and_printed_once(hub, monitor, lines):
    hub.events.append(RECOVERY)
    hub.findings.append(HANG)
    monitor.poll()
    hub.events.append(RECOVERY | {"ts_ns": 9})
    monitor.poll()
    assert [r["ts_ns"] for r in monitor.recoveries] == [5, 9]
    assert [(f.kind, f.subject) for f in monitor.findings] == [("hang", ("rank", "5"))]
    assert lines == [
        ("controller", "training again 2.0 s after the fault: hang"),
        ("analysis", "HANG: rank 5 is stopped (99% sure)"),
        ("controller", "training again 2.0 s after the fault: hang"),
    ]


def test_rows_are_read_only_when_the_hub_has_written_some(hub, monitor):
    for _ in range(3):
        monitor.poll()
    assert hub.reads == 0
    hub.findings.append(HANG)
    for _ in range(3):
        monitor.poll()
    assert hub.reads == 1


def test_progress_is_a_line_every_ten_steps_with_the_loss_where_it_is_known(hub, monitor, lines):
    for hub.step in (4, 9, 12, 19, 23):
        monitor.poll()
    assert lines == [("training", "step 12, loss 2.500"), ("training", "step 23")]


def test_a_hub_that_is_away_is_counted_and_asked_again(hub, monitor):
    hub.away = True
    monitor.poll()
    assert (monitor.failures, monitor.status.step) == (1, -1)
    hub.away, hub.step = False, 2
    monitor.poll()
    assert (monitor.failures, monitor.status.step) == (1, 2)


def test_a_wait_ends_with_its_condition_its_time_or_an_error(hub, monitor, monkeypatch):
    monkeypatch.setattr(job_monitor, "POLL_S", 0.0)

    def advance():
        hub.step += 1

    assert monitor.wait(lambda: monitor.status.step >= 3, 10.0, advance)
    assert not monitor.wait(lambda: False, 0.0, lambda: None)

    def fails():
        raise Unavailable("an agent ended")

    with pytest.raises(Unavailable, match="an agent ended"):
        monitor.wait(lambda: False, 10.0, fails)
