"""What the pages that explore show."""

import pytest

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.explore import (
    about,
    beside_cohort,
    detail_text,
    metric_chart,
    work_chart,
)
from pulsetrain.dashboard.models.step_marks import StepMark

S = 10**9


def row(rank, step, work, usual=100):
    return {
        "rank": rank,
        "step": step,
        "work_ns": work,
        "usual_ns": usual,
        "low_ns": 98,
        "high_ns": 103,
        "cohort": 64,
    }


def test_the_rank_that_differs_most_is_named():
    rows = [row(3, 1, 101), row(3, 2, 99), row(4, 1, 150), row(4, 2, 150)]
    assert beside_cohort(rows) == "Rank 4 works 150 ns a step, 1.50x the median of the 64 ranks of its stage."
    assert "No working time" in beside_cohort([])
    assert [line["name"] for line in work_chart(rows, LIGHT).option["series"][-2:]] == ["rank 3", "rank 4"]


def test_findings_about_ranks_and_their_node():
    found = [
        {"subject_type": "rank", "subject": "3"}, {"subject_type": "rank", "subject": "33"},
        {"subject_type": "gpu", "subject": "n1/GPU-7"}, {"subject_type": "job", "subject": "n1"},
    ]  # fmt: skip
    assert about(found, ranks=(3,)) == found[:1]
    assert about(found, ranks=(3,), node="n1") == [found[0], found[2]]


def test_a_node_whose_name_begins_like_another_has_findings_of_its_own():
    mine = ["n1/mlx5_0/1", "n0-n1", "n1-n10", "n10/mlx5_0/1 to n1/mlx5_1/1"]
    others = ["n10/mlx5_0/1", "n0-n10", "n10-n11", "n10/mlx5_0/1 to n11/mlx5_1/1", "switch:n1"]
    found = [{"subject_type": "link", "subject": subject} for subject in (*mine, *others)]
    assert [f["subject"] for f in about(found, node="n1")] == mine


def test_a_line_for_each_node_and_device():
    rows = [{"node": node, "device": "eth0", "ts_ns": S, "value": 1.0} for node in "ab"]
    chart = metric_chart(rows, "net_rx_bytes", [S], LIGHT)
    lines = [series for series in chart.option["series"] if series["data"]]
    assert [line["name"] for line in lines] == ["a eth0", "b eth0"]
    assert lines[0]["data"] == [[1000.0, 1.0, "1 B"]]
    (launches,) = [series["markLine"]["data"] for series in chart.option["series"] if "markLine" in series]
    assert [mark["xAxis"] for mark in launches] == [1000.0]


def test_steps_stand_at_the_foot_of_a_counter():
    rows = [{"node": "a", "device": "", "ts_ns": S, "value": 1.0}]
    chart = metric_chart(
        rows, "cpu_ratio", [], LIGHT, steps=[StepMark(ts_ns=S, step=1200), StepMark(ts_ns=2 * S, step=1300)]
    )
    (foot,) = [series["markPoint"]["data"] for series in chart.option["series"] if "markPoint" in series]
    told = [(mark["label"]["formatter"], mark["coord"][0]) for mark in foot]
    assert told == [("step 1,200", 1000), ("1,300", 2000)]


def test_the_band_of_a_stage_lies_between_its_ends_and_is_told_by_no_tooltip():
    row = {"rank": 3, "step": 1, "work_ns": 5e6, "usual_ns": 4e6, "low_ns": 3e6, "high_ns": 7e6, "cohort": 8}
    low, wide, usual, own = work_chart([row], LIGHT).option["series"]
    assert (low["data"], wide["data"]) == ([[1, 3.0]], [[1, 4.0]])
    assert low["stack"] == wide["stack"]
    assert [line["tooltip"].get("show", True) for line in (low, wide, usual, own)] == [
        False,
        False,
        True,
        True,
    ]


def test_details_are_pairs_and_never_endless():
    assert detail_text('{"a": 1}') == "a: 1"
    told = detail_text('{"onset_ns": 1795575600000000000, "stages_ns": {"load": 2000000000, "evict": 0}}')
    assert told == "onset: 2026-11-25 03:00:00 UTC, stages: load 2.00 s, evict 0 ns"
    assert detail_text("{") == "{"
    assert len(detail_text('{"a": "%s"}' % ("x" * 5000))) < 310


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ('{"silent_s": 12.345678901}', "silent: 12.3 s"),
        ('{"wait_s": 0, "took_s": 90}', "wait: 0 s, took: 1 min 30 s"),
        ('{"size_bytes": 123456789}', "size: 118 MiB"),
        ('{"slow_ratio": 0.123456789}', "slow: 12.3 %"),
        ('{"lost_gpu_s": 12.345678901, "bits_per_s": 98765432100.5}',
         "lost_gpu_s: 12.35, bits_per_s: 98,765,432,100"),
        ('{"norms": [1.000000001, 2.123456789]}', "norms: [1, 2.123]"),
        ('{"named": [{"kind": "port", "gap_s": 0.0123456}]}', "named: [{kind: port, gap: 12.3 ms}]"),
        ('{"step": 12345, "can_do": true, "node": null}', "step: 12345, can_do: True, node: None"),
        ('{"age_s": Infinity, "loss": NaN}', "age: inf, loss: nan"),
    ],
)  # fmt: skip
def test_numbers_of_a_detail_are_rounded_by_their_unit(detail, told):
    assert detail_text(detail) == told
