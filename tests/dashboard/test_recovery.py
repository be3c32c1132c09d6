"""The page Recovery."""

import json

DETAIL = {
    "cause": "node_lost", "culprit": "node-<1>", "stages_ns": {"detect": 1_200_000_000},
    "total_ns": 3_800_000_000, "resumed_step": 78, "lost_steps": 1, "actor": "controller",
}  # fmt: skip


def test_each_recovery_is_a_row_and_the_mean_is_said(draw, source):
    event = {"ts_ns": 10**18, "attempt": 1, "node": "node-1", "actor": "hub", "detail": json.dumps(DETAIL)}
    source.stored["events"] = [event, {**event, "attempt": 2}]
    shown = draw("recovery")
    assert "2 recoveries, 3.80 s on average, 2 steps done twice" in shown.text
    assert shown.rows()[0][1:] == ["1", "node_lost", "node-<1>", "3.80 s", "1.20 s", "78", "1", "controller"]
    assert len(shown.app.get("echarts_chart")) == 1


def test_a_job_that_never_failed(draw):
    assert "No recovery is on record" in draw("recovery").text


def test_recoveries_of_the_chosen_time(draw, source):
    text = draw("recovery", **{"from": "2026-11-25T03:00", "to": "2026-11-25T03:30"}).text
    assert "No recovery is on record for this job in this time." in text
    (options,) = [dict(options) for view, _, options in source.asked if view == "events"]
    assert options == {"from_ns": 1_795_575_600 * 10**9, "to_ns": 1_795_577_400 * 10**9}
