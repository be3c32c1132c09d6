"""Recoveries, and where the time of each went."""

import json

import pytest

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.recovery import recoveries, recovery_figure


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
