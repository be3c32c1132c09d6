"""The timeline's bars."""

from __future__ import annotations

import pytest

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.timeline import figure, timeline

NOW = 100_000_000_000


def span(start=0, length=10, rank=0, **values):
    return {
        "attempt": 1, "node": "n0", "rank": rank, "step": 3, "microbatch": -1, "phase": "forward",
        "category": "compute",
        "lane": "host", "group": "", "seq": -1, "parent": "", "bytes": 0, "start_ns": start,
        "duration_ns": length,
        "open": False, "spans_in_all": 1, **values,
    }  # fmt: skip


def bars(*rows, live_attempt=1):
    return timeline(rows, live_attempt=live_attempt, now_ns=NOW).bars


def test_an_open_span_of_the_running_attempt_reaches_to_now():
    (bar,) = bars(span(start=NOW - 50, length=10, open=True))
    assert (bar.open, bar.length_ns) == (True, 50)


@pytest.mark.parametrize("live_attempt", [-1, 2])
def test_an_open_span_of_an_attempt_that_is_over_keeps_its_age(live_attempt):
    (bar,) = bars(span(start=NOW - 50, length=10, open=True), live_attempt=live_attempt)
    assert bar.length_ns == 10


def test_a_clock_behind_the_hubs_never_shortens_a_span():
    (bar,) = bars(span(start=NOW + 500, length=10, open=True))
    assert bar.length_ns == 10


def test_lanes_are_in_order_of_rank_and_times_relative():
    found = timeline(
        [span(start=70, rank=10), span(start=50, rank=2), span(start=60, rank=2, lane="stream 7")],
        live_attempt=-1,
        now_ns=NOW,
    )
    assert found.lanes == ("rank 2 · host", "rank 2 · stream 7", "rank 10 · host")
    assert found.origin_ns == 50
    assert [bar.start_ns for bar in found.bars] == [0, 10, 20]


def test_a_span_inside_another_is_drawn_on_top():
    inner = span(phase="all_reduce", category="communication", parent="forward")
    chart = figure(timeline([inner, span()], live_attempt=-1, now_ns=NOW), LIGHT)
    assert {trace.name: trace.width for trace in chart.data} == {"compute": 0.8, "communication": 0.4}


def test_an_unknown_category_is_other_and_nothing_is_an_empty_timeline():
    (bar,) = bars(span(category="users own"))
    assert bar.category == "other"
    assert timeline([], live_attempt=-1, now_ns=NOW).bars == ()


def test_what_was_left_out_is_counted():
    assert timeline([span(spans_in_all=41)], live_attempt=-1, now_ns=NOW).left_out == 40
