"""Reports say what was sent, what the hub answered, and what falls behind."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pulsetrain.simulate.live.agent import Traffic
from pulsetrain.simulate.live.hub_watch import HubAnswer
from pulsetrain.simulate.live.report import Progress
from pulsetrain.stream.spool.shipper import Shipped
from tests.simulate.live.fleets import FLEET, faults

HUB = HubAnswer(took_s=0.25, bytes=2048, state="healthy", sentence="Healthy.", cpu_ratio=0.5)


@dataclass
class Recorder:
    waiting: int = 0
    backlog: int = 0
    dropped_rows: int = 0
    shipped: list = field(default_factory=list)


def progress():
    return Progress(fleet=FLEET, plan=(), traffic=Traffic(connections=4), recorder=Recorder())


def test_a_report_counts_what_came_since_the_one_before():
    run = progress()
    run.traffic.heartbeats, run.traffic.commands = 40, Counter({"Start": 4})
    run.recorder.shipped = [Shipped(rows=500)]
    first = run.report(1.0, 0, 0.1, HUB)
    second = run.report(2.0, 0, 0.1, HUB)
    assert first.heartbeats_per_s > 0
    assert first.rows_per_s > 0
    assert (second.heartbeats_per_s, second.rows_per_s, second.commands) == (0, 0, {})
    assert "4 Start" in first.line()
    assert "hub: healthy Healthy." in first.line()
    assert "BEHIND" not in first.line()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda run: run.late(1.5), "heartbeats go out 1.5 s late"),
        (lambda run: setattr(run.traffic, "held_back", 7), "the hub took 7 heartbeats too late"),
        (lambda run: setattr(run.recorder, "dropped_rows", 9), "9 rows dropped"),
    ],
)
def test_what_falls_behind_is_said(change, says):
    run = progress()
    change(run)
    report = run.report(1.0, 0, 0.1, HUB)
    assert report.behind == says
    assert f"BEHIND: {says}" in report.line()


def test_a_hub_that_does_not_answer_is_said_and_counts_in_no_median():
    run = progress()
    run.report(1.0, 0, 0.1, HUB)
    away = run.report(2.0, 0, 0.1, HubAnswer(took_s=60.0, error="no answer"))
    assert away.behind == "no answer"
    assert run.summary().hub_cpu_ratio == 0.5


def test_the_summary_is_json_and_lists_the_faults_that_began():
    run = progress()
    [fault] = faults({"kind": "exit", "at_s": 5, "rank": 9, "code": 1})
    run.struck(fault, 5.06)
    run.report(6.0, 2, 0.1, HUB)
    summary = json.loads(json.dumps(dataclasses.asdict(run.summary())))
    assert summary["faults"] == [{"kind": "exit", "subject": "rank 9 on sim-00002", "at_s": 5.06}]
    assert (summary["attempts"], summary["ranks"], summary["status_bytes"]) == (3, 16, 2048)
