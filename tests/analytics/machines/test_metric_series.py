"""Rows of metrics as series."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.machines.metric_series import by_device, duration_s

S = 10**9


def table(rows):
    """From (node, device, name, second, value)."""
    node, device, name, second, value = map(list, zip(*rows, strict=True))
    ts = pa.array([s * S for s in second], pa.timestamp("ns", "UTC"))
    return pa.table(
        {"node": node, "device": device, "name": name, "ts": ts, "value": pa.array(value, pa.float64())}
    )


def series(rows, wanted=lambda name: True):
    return {
        (node, device, name): (times.tolist(), values.tolist())
        for node, device, metrics in by_device(table(rows), wanted)
        for name, (times, values) in metrics.items()
    }


@given(st.permutations([("n1", "d", "x", second, float(second)) for second in range(6)]))
def test_rows_in_any_order_and_twice_are_one_rising_series(rows):
    assert series(rows + rows[:3]) == {
        ("n1", "d", "x"): ([s * S for s in range(6)], [float(s) for s in range(6)])
    }


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_left_out(value):
    rows = [("n1", "d", "x", 0, 1.0), ("n1", "d", "x", 1, value)]
    assert series(rows) == {("n1", "d", "x"): ([0], [1.0])}


def test_only_wanted_metrics_sorted_by_node_and_device():
    rows = [(node, device, name, 0, 1.0) for node in "ba" for device in "yx" for name in ("good", "bad")]
    assert list(series(rows, wanted=lambda name: name == "good")) == [
        (node, device, "good") for node in "ab" for device in "xy"
    ]


def test_the_duration_is_from_the_first_to_the_last_sample():
    ((_, _, metrics),) = by_device(table([("n", "d", "x", s, 1.0) for s in (3, 9, 5)]), lambda name: True)
    assert duration_s(metrics["x"]) == 6
