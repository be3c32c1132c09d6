"""Change points and rolling medians of a series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness.change_point import changes, rolling_median, run_lengths


def test_a_change_is_found_where_it_is():
    values = np.concatenate([np.tile([1.0, 1.1], 30), np.tile([2.0, 2.1], 30)])
    assert changes(values) == [60]
    assert changes(np.full(50, 3.0)) == []
    assert changes(np.full(50, np.nan)) == []


def test_rolling_medians_skip_gaps():
    values = np.array([[1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 9.0]])
    assert rolling_median(values, 3).tolist()[0][0] == 2.0
    assert np.isnan(rolling_median(values, 3)[0, 2])


@given(at=st.integers(20, 80), height=st.floats(1.5, 20))
def test_a_level_that_moves_and_stays_is_one_change(at, height):
    noise = 0.05 * np.random.default_rng(0).standard_normal(120)
    series = np.where(np.arange(120) < at, 1.0, height) + noise
    (found,) = changes(series)
    assert abs(found - at) <= 1


def test_gaps_leave_the_run_as_it_is():
    lengths = run_lengths(np.array([1.0, 1.1, np.nan, np.nan]))
    assert lengths.tolist() == [1, 2, 3, 4]
    assert run_lengths(np.array([np.nan])).tolist() == [1]
    assert run_lengths(np.array([])).size == 0


@given(st.lists(st.floats(0, 9), min_size=5, max_size=30), st.integers(1, 3))
def test_a_rolling_median_without_gaps_is_the_median_of_each_window(values, stride):
    medians = rolling_median(np.array(values), 5, stride)
    expected = [np.median(values[i : i + 5]) for i in range(0, len(values) - 4, stride)]
    assert medians.tolist() == pytest.approx(expected)
