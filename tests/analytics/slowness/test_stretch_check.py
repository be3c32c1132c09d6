"""The true edges of a stretch, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.fail_slow_config import FailSlowConfig
from pulsetrain.analytics.slowness.slow_windows import slow_against_history
from pulsetrain.analytics.slowness.stretch_check import SlowStretch, overlap, verified
from pulsetrain.analytics.slowness.window_scan import Candidate
from tests.analytics.slowness.series import calm


def candidate(begin, end, width=10):
    return Candidate(begin=begin, end=end, baseline=1.0, margin=3.0, drift=False, width=width)


def check(values, begin, end, edges=()):
    return verified(values, candidate(begin, end), edges, FailSlowConfig())


def slow(begin, end, ratio=1.5, steps=200):
    values = calm(1, steps, noise=0.01)[0]
    values[begin:end] *= ratio
    return values


def test_the_edges_are_where_the_level_changes():
    stretch = check(slow(63, 118), 60, 125)
    assert (stretch.begin, stretch.end) == (63, 118)
    assert stretch.ratio == pytest.approx(1.5, abs=0.02)
    assert stretch.margin == 3.0
    assert not stretch.ongoing
    assert not stretch.drift


def test_a_change_point_nearby_is_the_edge_and_a_far_one_is_not():
    stretch = check(slow(63, 118), 60, 125, edges=(61, 140))
    assert (stretch.begin, stretch.end) == (61, 118)


def test_a_stretch_is_followed_beyond_what_the_windows_saw():
    stretch = check(slow(40, 180), 60, 90)
    assert (stretch.begin, stretch.end) == (40, 180)


def test_a_stretch_up_to_the_end_is_ongoing():
    stretch = check(slow(150, 200), 150, 200)
    assert stretch.ongoing
    assert stretch.end == 200


def test_what_is_short_or_missing_or_hardly_slower_is_refused():
    assert check(slow(100, 105), 95, 110) is None
    assert check(slow(100, 140, ratio=1.03), 100, 140) is None
    gaps = slow(100, 140)
    gaps[90:150] = np.nan
    assert check(gaps, 100, 140) is None


def test_a_burst_that_lengthens_only_some_steps_is_refused():
    values = calm(1, 200, noise=0.01)[0]
    values[100:140:3] *= 3
    values[101:140:3] *= 1.5
    assert check(values, 100, 140) is None


def test_a_drift_is_told_from_a_step():
    values = calm(1, 300, noise=0.005)[0] * (1 + 0.003 * np.maximum(0, np.arange(300) - 100))
    stretch = check(values, 180, 300)
    assert stretch.drift
    assert 90 <= stretch.begin <= 120
    assert stretch.ongoing


@pytest.mark.parametrize(
    ("other", "shared"), [((0, 5), False), ((0, 6), True), ((9, 20), True), ((10, 20), False)]
)
def test_stretches_overlap_where_they_share_a_step(other, shared):
    a, b = (
        SlowStretch(row=0, begin=begin, end=end, ratio=1, margin=1, drift=False, ongoing=False)
        for begin, end in ((5, 10), other)
    )
    assert overlap(a, b) == overlap(b, a) == shared


def test_a_stretch_ends_when_the_newest_steps_are_quick_again():
    series = np.ones(120)
    series[60:90] = 1.5
    for newest, ongoing in ((88, True), (95, False), (100, False)):
        (stretch,) = slow_against_history(np.tile(series[:newest], (2, 1)))
        assert stretch.ongoing is ongoing
