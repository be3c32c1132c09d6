"""The interval to save at, and what a failure costs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.interval import (
    advise,
    job_mttf_s,
    most_available_s,
    shortest_interval_s,
    wasted_s,
    young_s,
)
from pulsetrain.core.errors import UsageError


def test_the_papers_example_of_wasted_time():
    assert wasted_s(42, 42, 42) == 105
    assert shortest_interval_s(42, 1) == 42


def test_young_and_the_most_available_interval_agree_where_recovery_is_short():
    assert young_s(10_000, 2) == pytest.approx(200)
    assert most_available_s(10_000, 0, 2) == pytest.approx(202.01, rel=1e-3)


@given(st.floats(0.1, 100), st.floats(0, 50), st.floats(0, 500), st.floats(1e3, 1e7), st.floats(0, 1e3))
def test_advice_is_feasible(step_s, stall_s, save_s, mttf_s, recover_s):
    advice = advise(step_s=step_s, stall_s=stall_s, save_s=save_s, mttf_s=mttf_s, recover_s=recover_s)
    assert advice.interval_s >= max(step_s, save_s) * (1 - 1e-9)
    assert math.isclose(advice.interval_s, advice.every_steps * step_s)
    assert 0 <= advice.lost_ratio <= 1


def test_a_save_without_cost_is_made_every_step_and_silent_errors_need_older_ones():
    assert advise(step_s=2, stall_s=0, save_s=1, mttf_s=1e5, recover_s=60).every_steps == 1
    late = advise(step_s=2, stall_s=0, save_s=1, mttf_s=1e5, recover_s=60, detect_s=100)
    assert late.every_steps == 50
    assert "silent" in late.reason


def test_the_time_between_failures_of_a_job_falls_with_its_nodes():
    assert job_mttf_s(5000.0, None, 100) == 5000.0
    assert job_mttf_s(None, 0.01, 200) == job_mttf_s(None, 0.01, 100) / 2


@pytest.mark.parametrize(
    ("mttf_s", "rate", "nodes"), [(None, None, 4), (1.0, 0.1, 4), (None, 0.0, 4), (None, 0.1, 0)]
)
def test_a_job_without_one_clear_failure_rate_is_refused(mttf_s, rate, nodes):
    with pytest.raises(UsageError, match="failures-per-node-day"):
        job_mttf_s(mttf_s, rate, nodes)


@pytest.mark.parametrize("bad", [{"step_s": 0}, {"mttf_s": 0}, {"save_s": -1}, {"recover_s": -1}])
def test_advice_needs_positive_times(bad):
    times = {"step_s": 1.0, "stall_s": 0.0, "save_s": 1.0, "mttf_s": 1e4, "recover_s": 30.0}
    with pytest.raises(UsageError, match="allowed"):
        advise(**(times | bad))
