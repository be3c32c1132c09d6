"""Recoveries, and where the time of each went."""

import json

import pytest

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.recovery import recoveries, recovery_chart


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
    chart = recovery_chart([line], LIGHT)
    stages = chart.option["series"]
    assert [s["name"] for s in stages] == ["detect", "diagnose", "evict", "rendezvous", "load", "first step"]
    assert sum(s["data"][0]["value"][0] for s in stages) == pytest.approx(2.5)
    assert [s["data"][0]["label"]["show"] for s in stages] == [True, False, False, False, True, False]


def test_two_recoveries_of_one_cause_in_one_second_stay_two_bars():
    same = [recovery("{}"), recovery("{}")]
    chart = recovery_chart(recoveries(same), LIGHT)
    assert len(set(chart.option["yAxis"]["data"])) == 2


def test_a_detail_that_is_not_json_is_said():
    (line,) = recoveries([recovery("<oops>")])
    assert (line.cause, line.culprit, line.total_ns) == ("unreadable", "n1", 0)
