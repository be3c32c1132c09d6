"""Statistics that a few wild values do not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import robust


def noise(steps=4000, ranks=4, seed=0, spread=0.1):
    return spread * np.random.default_rng(seed).standard_normal((steps, ranks))


@given(wild=st.floats(-1e9, 1e9), at=st.integers(0, 19))
def test_one_wild_step_does_not_move_a_trimmed_mean(wild, at):
    calm = np.linspace(0.9, 1.1, 20)[:, None]
    disturbed = calm.copy()
    disturbed[at] = wild
    assert robust.trimmed_mean(disturbed) == pytest.approx(robust.trimmed_mean(calm), abs=0.02)


def test_sigma_is_the_standard_deviation_of_normal_noise():
    assert robust.sigma(noise()) == pytest.approx(0.1, rel=0.05)
    assert robust.sigma(noise(), axis=0) == pytest.approx([0.1] * 4, rel=0.1)


def test_autocorrelation_is_that_of_successive_steps():
    level = np.zeros((4000, 1))
    fresh = noise(ranks=1)
    for t in range(1, len(level)):
        level[t] = 0.6 * level[t - 1] + fresh[t]
    assert robust.autocorrelation(level) == pytest.approx(0.6, abs=0.08)
    assert robust.autocorrelation(fresh) < 0.1
    assert robust.autocorrelation(-fresh[:2]) == 0
    assert robust.autocorrelation(np.zeros((10, 2))) == 0


def test_the_standard_error_is_how_far_trimmed_means_stray():
    windows = np.stack([noise(steps=40, ranks=1, seed=seed)[:, 0] for seed in range(400)], axis=1)
    stray = robust.trimmed_mean(windows).std()
    assert np.median(robust.standard_error(windows)) == pytest.approx(stray, rel=0.15)


def test_a_wild_column_has_a_larger_error_and_a_calm_one_no_smaller_than_the_others():
    residuals = noise(steps=200)
    residuals[:, 1] *= 5
    residuals[:, 2] *= 0.01
    error = robust.standard_error(residuals)
    assert error[1] > 2 * error[0]
    assert error[2] > 0.5 * error[0]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_what_lengthens_some_steps_does_not_raise_the_low_level(seed):
    rng = np.random.default_rng(seed)
    pieces = np.exp(0.01 * rng.standard_normal((3, 60, 4)))
    disturbed = pieces * np.where(rng.random(pieces.shape) < 0.3, rng.uniform(1, 20, pieces.shape), 1)
    assert robust.low_level(disturbed) == pytest.approx(robust.low_level(pieces), abs=0.03)


def test_a_gap_is_positive_only_where_the_best_are_worse_than_the_others_bad():
    rng = np.random.default_rng(0)
    times = rng.uniform(0, 1, (200, 12))
    times[:, 3] += 1
    gap = robust.quartile_gap(times)
    assert (gap > 0).tolist() == [rank == 3 for rank in range(12)]
    few = robust.quartile_gap(times[:, :4])
    assert (few > 0).tolist() == [rank == 3 for rank in range(4)]


def test_the_noise_of_low_levels_is_how_far_they_stray():
    rng = np.random.default_rng(0)
    pieces = np.exp(0.2 * rng.standard_normal((2, 400, 8)))
    measured = robust.low_noise(pieces)
    levels = [robust.low_level(pieces[:, i : i + 20]) for i in range(0, 400, 20)]
    assert measured / np.sqrt(20) == pytest.approx(np.std(levels), rel=0.5)
    lasting = pieces * np.linspace(1, 5, 8)
    assert robust.low_noise(lasting) == pytest.approx(measured, rel=0.05)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_tests_need_more_sigmas(a, b):
    few, many = sorted((a, b))
    assert robust.sigmas_needed(1e-4, few) <= robust.sigmas_needed(1e-4, many)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20))
def test_the_lower_median_is_a_value_with_at_most_half_below(values):
    middle = robust.lower_median(np.array(values))
    assert middle in values
    assert sum(v < middle for v in values) <= (len(values) - 1) // 2


@given(at=st.integers(0, 50), seed=st.integers(0, 99))
def test_the_onset_is_where_the_level_was_left(at, seed):
    series = 0.05 * np.random.default_rng(seed).standard_normal(60) + (np.arange(60) >= at)
    assert robust.onset(series, 1.0) == at


@given(
    rows=st.integers(2, 7).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(0, 3), min_size=columns, max_size=columns), min_size=1, max_size=4
        )
    )
)
def test_each_value_is_left_out_of_what_the_others_are(rows):
    values = np.array(rows, np.float64)
    without = [np.delete(values, i, axis=1) for i in range(values.shape[1])]
    medians = np.stack([np.median(others, axis=1) for others in without], axis=1)
    highest = np.stack([others.max(axis=1) for others in without], axis=1)
    assert robust.medians_of_others(values).tolist() == medians.tolist()
    assert robust.highest_of_others(values).tolist() == highest.tolist()
