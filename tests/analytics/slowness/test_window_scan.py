"""Windows that stand out against those before them."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.fail_slow_config import FailSlowConfig, Scale
from pulsetrain.analytics.slowness.window_scan import scan, wander_of
from tests.analytics.slowness.series import calm, wandering

SHORT, LONG = (
    Scale(width=10, step_floor=0.11, step_sigmas=5.0, drifts=False),
    Scale(width=20, step_floor=0.1, step_sigmas=4.5, drifts=True),
)
CONFIG = FailSlowConfig()


def series(steps=200, noise=0.01):
    return calm(1, steps, noise=noise)[0]


def test_windows_over_a_slow_stretch_are_one_candidate():
    values = series()
    values[100:140] *= 1.4
    (candidate,) = scan(values, None, SHORT, 0.0, CONFIG)
    assert candidate.begin <= 100
    assert candidate.end >= 140
    assert candidate.baseline == pytest.approx(1.0, abs=0.02)
    assert candidate.margin == pytest.approx(0.4 / 0.11, rel=0.1)
    assert not candidate.drift


def test_a_slow_rise_is_a_drift_over_the_lower_quartile():
    values = series(300) * (1 + 0.002 * np.maximum(0, np.arange(300) - 100))
    candidates = scan(values, None, LONG, 0.0, CONFIG)
    assert candidates[0].drift
    assert not scan(series(300), None, LONG, 0.0, CONFIG)


def test_what_is_not_slower_than_its_peers_is_no_candidate():
    values = series()
    values[100:140] *= 1.4
    assert scan(values, values, SHORT, 0.0, CONFIG)
    assert not scan(values, np.ones(200), SHORT, 0.0, CONFIG)


def test_where_all_ranks_wander_more_is_needed():
    values = series()
    values[100:140] *= 1.25
    assert scan(values, None, SHORT, 0.0, CONFIG)
    assert not scan(values, None, SHORT, 0.06, CONFIG)


def test_wandering_ranks_wander_more_than_noisy_ones():
    assert wander_of(wandering(10, 300, 0.05, 0), 20) > 2 * wander_of(calm(10, 300, 0.05), 20)
    assert wander_of(np.full((3, 50), np.nan), 10) == 0
