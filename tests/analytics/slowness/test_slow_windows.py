"""Slow stretches in series of step times: what is found, when, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import slow_windows
from pulsetrain.analytics.slowness.slow_windows import slow_against_history, slow_against_peers
from tests.analytics.slowness.series import calm, wandering


def stretches(values):
    return [(s.row, s.begin, s.end) for s in slow_against_peers(values)]


@pytest.mark.parametrize("seed", range(12))
def test_a_clean_run_gives_nothing(seed):
    values = calm(noise=(0.005, 0.02, 0.05)[seed % 3], seed=seed)
    assert slow_against_peers(values) == slow_against_history(values) == []


def test_ranks_that_wander_by_themselves_raise_few_alarms():
    alarms = [bool(slow_against_peers(wandering(10, 300, 0.03, seed))) for seed in range(40)]
    assert sum(alarms) <= 2


@given(rank=st.integers(0, 7), begin=st.integers(60, 200), length=st.integers(20, 80))
@settings(max_examples=10)
@example(rank=0, begin=78, length=71)  # as long as its history: the windows stop counting before it ends
def test_a_planted_fault_is_that_rank_in_that_window(rank, begin, length):
    values = calm()
    values[rank, begin : begin + length] *= 1.3
    ((row, first, last),) = stretches(values)
    assert row == rank
    assert abs(first - begin) <= 2
    assert abs(last - (begin + length)) <= 2


@given(factors=st.lists(st.floats(1.2, 4), min_size=2, max_size=3, unique=True))
@settings(max_examples=6)
def test_a_worse_fault_is_never_milder(factors):
    def margin(factor):
        values = calm()
        values[3, 150:] *= factor
        return max(s.margin for s in slow_against_peers(values))

    margins = [margin(f) for f in sorted(factors)]
    assert margins == sorted(margins)


def test_one_lucky_fast_window_does_not_flag_the_next_hundred_normal_ones():
    values = calm()
    values[2, 100:110] *= 0.6
    assert slow_against_peers(values) == []
    values = calm()
    values[:, 100:110] *= 0.6
    assert slow_against_history(values) == []


@pytest.mark.parametrize("begin", [0, 60, 100])
@pytest.mark.parametrize("everybody", [False, True])
def test_a_drift_of_one_percent_a_window_is_found_before_it_reaches_fifteen(begin, everybody):
    drift = 1 + 0.001 * np.maximum(0, np.arange(320) - begin)
    values = calm(steps=320, noise=0.01)
    values[slice(None) if everybody else 3] *= drift
    search = slow_against_history if everybody else slow_against_peers
    found = next(t for t in range(60, 320, 5) if search(values[:, :t]))
    assert drift[found - 1] < 1.15


def test_a_uniform_slow_down_is_found_by_the_jobs_own_history_only():
    values = calm()
    values[:, 150:] *= 1.2
    assert slow_against_peers(values) == []
    ((slow),) = slow_against_history(values)
    assert abs(slow.begin - 150) <= 2
    assert slow.ongoing


def test_a_heavier_stage_is_nobodys_fault():
    values = calm()
    values[4:] *= 1.5
    assert slow_against_peers(values) == slow_against_history(values) == []


def test_a_slow_batch_of_data_is_everybodys():
    values = calm()
    values[:, ::7] *= 1.8
    assert slow_against_peers(values) == []


def test_two_ranks_still_have_each_other():
    values = calm(ranks=2)
    values[1, 120:] *= 1.4
    assert {row for row, _, _ in stretches(values)} == {1}


def test_gaps_zeros_and_infinities_are_missing_values():
    values = calm()
    values[5, 100:] *= 1.3
    values[5, 110:120] = np.nan
    values[1, ::9] = np.inf
    values[2, ::11] = 0
    assert {row for row, _, _ in stretches(values)} == {5}


@pytest.mark.parametrize("shape", [(0, 0), (1, 5), (1, 300), (3, 1), (4, 12)])
def test_too_little_is_no_reason_to_accuse(shape):
    values = np.ones(shape)
    assert slow_against_peers(values) == []
    assert slow_against_history(values) == []
    assert slow_against_history(np.full(shape, np.nan)) == []


def test_a_thousand_ranks_are_searched_in_a_moment():
    values = calm(ranks=1024, steps=200)
    values[77, 120:] *= 1.3
    assert {row for row, _, _ in stretches(values)} == {77}


def test_of_two_rows_the_one_that_gets_quick_again_does_not_accuse_the_other():
    calm = np.random.default_rng(0).lognormal(0, 0.03, (2, 160))
    calm[1, :60] *= 1.8
    assert 0 not in [s.row for s in slow_against_peers(calm)]
    calm[1, :60] /= 1.8
    calm[0, 120:] *= 1.6
    assert [s.row for s in slow_against_peers(calm)] == [0]


def test_a_longer_batch_that_costs_one_stage_more_is_nobodys_fault():
    values = calm(noise=0.005)
    values[:, 150:] *= 1.76
    values[:4, 150:] *= 1.25
    stages = [np.arange(4), np.arange(4, 8)]
    assert slow_against_peers(values, cohorts=stages) == []
    values[2, 150:] *= 1.3
    assert {s.row for s in slow_against_peers(values, cohorts=stages)} == {2}


def test_a_row_that_is_alone_in_its_cohort_is_compared_with_all_rows():
    values = calm(ranks=4)
    values[1, 150:] *= 1.4
    (slow,) = slow_against_peers(values, cohorts=[np.array([row]) for row in range(4)])
    assert slow.row == 1
    assert abs(slow.begin - 150) <= 2


def test_rows_that_are_alone_are_compared_with_all_rows_at_once(monkeypatch):
    calls = []
    over = slow_windows.over_others
    monkeypatch.setattr(slow_windows, "over_others", lambda values: calls.append(1) or over(values))
    slow_against_peers(wandering(40, 120, 0.03, 0), cohorts=[np.array([row]) for row in range(40)])
    assert len(calls) == 1
