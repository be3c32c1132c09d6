"""Alerts, nodes, the cost of an eviction, recoveries, checkpoints."""

from __future__ import annotations

import json

import pytest

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.operations import (
    about,
    can_be_evicted,
    checkpoint_lines,
    detectors,
    gauge_text,
    heard_text,
    hub_facts,
    moment_ns,
    open_alerts,
    ordered_alerts,
    ordered_nodes,
    plan,
    recoveries,
    recovery_figure,
    silence_of,
    times,
)


def alert(name, severity="warning", state="firing", by="", since_ns=1):
    return {"id": name, "severity": severity, "state": state, "acknowledged_by": by, "since_ns": since_ns}


def test_alerts_that_need_a_person_come_first():
    alerts = [
        alert("gone", "critical", "resolved"), alert("seen", "critical", by="ann"),
        alert("old", since_ns=10**18),
        alert("new", since_ns=2 * 10**18), alert("bad", "critical"),
    ]  # fmt: skip
    assert [a["id"] for a in ordered_alerts(alerts)] == ["bad", "new", "old", "seen", "gone"]
    assert open_alerts(alerts) == 3
    assert open_alerts([alert("note", "info")]) == 0


def test_an_alert_says_what_it_is_about():
    assert about({"subject_type": "rank", "subject": "5"}) == "rank 5"
    assert about({"subject_type": "node", "subject": "node-2"}) == "node-2"
    assert about({"subject_type": "job", "subject": "gpt"}) == about({"subject": "gpt"}) == "gpt"
    assert (times(None), times(1), times(1200)) == ("once", "once", "1,200 times")


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (1_700_000_000_000_000_000, 1_700_000_000_000_000_000),
        (1_700_000_000.5, 1_700_000_000_500_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000_000_000),
        (None, 0),
        ("soon", 0),
    ],
)
def test_moments_of_any_form(value, ns):
    assert moment_ns(value) == ns


def test_nodes_in_trouble_come_first_then_by_number():
    nodes = [
        {"node": name, "state": state, "job": job}
        for name, state, job in (
            ("n10", "active", "j"), ("n2", "active", "j"), ("n3", "lost", "j"), ("s", "standby", ""),
            ("x", "active", "k"),
        )
    ]  # fmt: skip
    assert [n["node"] for n in ordered_nodes(nodes, job="j")] == ["n3", "s", "n2", "n10"]
    assert [n["node"] for n in ordered_nodes(nodes, job="", find="N1")] == ["n10"]
    assert [n["node"] for n in nodes if can_be_evicted(n)] == ["n10", "n2", "s", "x"]


ANSWER = {
    "node": "n3", "job": "gpt", "ranks": [6, 7], "standby": "n5", "resume_step": 119, "lost_steps": 1,
    "expected_s": 3.8, "allowed": True, "why_not": "",
}  # fmt: skip


def test_a_plan_says_what_it_costs():
    found = plan(ANSWER)
    assert found.allowed
    assert found.sentences == (
        "n3 runs ranks 6-7 of gpt.",
        "Its place goes to n5.",
        "The job resumes from step 119; 1 step is done again.",
        "Expected pause: 3.80 s.",
    )


def test_a_plan_says_what_is_missing():
    found = plan(
        ANSWER
        | {"standby": None, "resume_step": -1, "expected_s": None, "allowed": False, "why_not": "budget"}
    )
    text = " ".join(found.sentences)
    assert not found.allowed
    for words in ("No standby is free", "start from its first step", "The hub refuses: budget."):
        assert words in text


def test_evicting_a_spare_costs_nothing():
    assert plan(ANSWER | {"ranks": [], "standby": None}).sentences == (
        "n3 runs no ranks: the job does not stop.",
    )


def recovery(detail):
    return {
        "ts_ns": 1_700_000_000_000_000_000,
        "attempt": 2,
        "node": "n1",
        "actor": "controller",
        "detail": detail,
    }


def test_a_recovery_is_its_stages():
    stages = {"detect": 2_000_000_000, "load": 500_000_000}
    (line,) = recoveries([recovery(json.dumps({"cause": "hang", "culprit": "rank 5", "stages_ns": stages}))])
    assert (line.cause, line.culprit, line.total_ns) == ("hang", "rank 5", 2_500_000_000)
    chart = recovery_figure([line], LIGHT)
    assert [t.name for t in chart.data] == ["detect", "diagnose", "evict", "rendezvous", "load", "first step"]
    assert sum(t.x[0] for t in chart.data) == pytest.approx(2.5)


def test_two_recoveries_of_one_cause_in_one_second_stay_two_bars():
    same = [recovery("{}"), recovery("{}")]
    chart = recovery_figure(recoveries(same), LIGHT)
    assert len(set(chart.data[0].y)) == 2


def test_a_detail_that_is_not_json_is_said():
    (line,) = recoveries([recovery("<oops>")])
    assert (line.cause, line.culprit, line.total_ns) == ("unreadable", "n1", 0)


def test_checkpoints_gather_the_stages_of_a_step():
    row = {
        "attempt": 0,
        "step": 4,
        "stage": "copy",
        "tier": "memory",
        "ranks": 8,
        "bytes": 7,
        "longest_ns": 5,
        "ts_ns": 1,
    }
    lines = checkpoint_lines(
        [row, {**row, "stage": "persist", "tier": "storage", "ts_ns": 3}, {**row, "step": 5}]
    )
    assert [line["step"] for line in lines] == [5, 4]
    assert lines[1]["stages"] == {"copy (memory)": (8, 5), "persist (storage)": (8, 5)}
    assert lines[1]["ts_ns"] == 3


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("spool_bytes", 2048, "2.00 KiB"),
        ("cpu_ratio", 0.021, "2.1 %"),
        ("lag_s", 1.5, "1.50 s"),
        ("dropped_rows", 12_345.0, "12,345"),
        ("load", 0.5, "0.5"),
        ("dropped_rows", None, "-"),
    ],
)
def test_gauges_have_units(name, value, text):
    assert gauge_text(name, value) == text


def test_the_hub_counts_failures_also_when_there_are_none():
    assert hub_facts({"watch_failures": 0}, 5)["failed looks"] == "0"
    assert hub_facts({}, 5)["failed looks"] == "-"


def test_when_a_node_was_heard():
    assert (heard_text(0.04), heard_text(71), heard_text(None)) == ("0.0 s ago", "1 min 11 s ago", "never")


def test_a_silenced_alert_needs_nobody_and_its_matchers_are_its_own():
    muted = {**alert("a"), "muted": "silenced by ann"}
    assert open_alerts([muted]) == 0
    assert [a["id"] for a in ordered_alerts([muted, alert("b")])] == ["b", "a"]
    assert silence_of({"job": "", "kind": "hang", "subject": "5"}) == {"kind": "hang", "subject": "5"}


def test_the_worst_of_a_detector_counts_and_blind_comes_before_healthy():
    verdicts = [
        {"analyzer": "mfu", "state": "healthy"},
        {"analyzer": "network", "state": "blind", "reason": "no port"},
        {"analyzer": "hang", "state": "healthy"},
        {"analyzer": "hang", "state": "finding", "summary": "rank 3"},
    ]
    assert [(d["name"], d["state"], d["reason"]) for d in detectors(verdicts)] == [
        ("network", "blind", "no port"),
        ("hang", "finding", "rank 3"),
        ("mfu", "healthy", ""),
    ]
    assert detectors([]) == []
