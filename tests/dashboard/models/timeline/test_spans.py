"""Spans as columns."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pulsetrain.analytics.slowness.clocks import Clock
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from tests.dashboard.models.timeline.rows import collective, row, spans

NOW = 100_000_000_000
S = 1_000_000_000


def aged(*rows, live_attempt=1):
    return spans(*rows).with_ages(live_attempt=live_attempt, now_ns=NOW)["duration_ns"].tolist()


def test_the_order_of_rows_changes_nothing():
    rows = [row(k % 7, 10 + k, k % 3, phase=f"p{k % 4}", node=f"n{k % 2}") for k in range(40)]
    shuffled = random.Random(1).sample(rows, len(rows))
    one, other = spans(*rows), spans(*shuffled)
    assert all((one[name] == other[name]).all() for name in one.numbers)
    assert [one.names["phase"].at(k) for k in range(40)] == [other.names["phase"].at(k) for k in range(40)]


def test_the_main_thread_comes_first_and_its_communication_behind_it():
    rows = (row(lane="loader"), collective(start=1), row(start=5), row(rank=1), row(lane="cuda:0"))
    found = spans(*rows)
    lanes = [found.names["lane"].at(i) for i in range(len(found))]
    assert lanes == ["host", "host", "cuda:0", "loader", "host"]
    assert found.communicates.tolist() == [False, True, False, False, False]
    assert found["rank"].tolist() == [0, 0, 0, 0, 1]


def test_an_old_open_span_of_the_running_attempt_is_as_old_as_it_is_now_to_ten_seconds():
    assert aged(row(NOW - 38 * S, 30 * S, open=True)) == [30 * S]
    assert aged(row(NOW - 41 * S, 30 * S, open=True)) == [40 * S]
    assert aged(row(NOW - 9 * S, 8 * S, open=True)) == [8 * S]


@pytest.mark.parametrize("live_attempt", [-1, 2])
def test_an_open_span_of_an_attempt_that_is_over_keeps_its_age(live_attempt):
    assert aged(row(NOW - 50 * S, 17 * S, open=True), live_attempt=live_attempt) == [17 * S]


def test_a_span_that_ended_keeps_its_length():
    assert aged(row(NOW - 50 * S, 17 * S)) == [17 * S]


def test_the_longest_and_all_open_spans_are_kept_in_their_order():
    rows = [row(10 * k, k + 1) for k in range(9)] + [row(200, 0, open=True)]
    assert spans(*rows).longest(3)["start_ns"].tolist() == [70, 80, 200]
    assert len(spans(*rows).longest(99)) == 10


def test_only_nodes_whose_clock_is_known_are_moved():
    ahead = Clock(at_ns=0.0, offset_ns=30.0, drift=0.0, error_ns=5.0)
    found = spans(row(100, node="n0"), row(100, rank=1, node="n1"))
    moved = found.on_one_clock(NodeClocks(origin_ns=50, clocks={"n1": ahead}))
    assert moved["start_ns"].tolist() == [100, 70]


def test_no_row_is_no_span():
    found = spans()
    assert (len(found), found.in_all) == (0, 0)
    assert not found.communicates.any()


def test_names_are_sorted_and_codes_point_at_them():
    found = spans(row(0, phase="optimizer"), row(1, phase="data"), row(2, phase="optimizer"))
    assert found.names["phase"].names == ("data", "optimizer")
    assert np.array_equal(found.names["phase"].codes, [1, 0, 1])
