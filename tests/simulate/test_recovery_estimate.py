"""Failures by expectation: agrees with the simulator, and more failures are never better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.simulate.recovery import simulate
from pulsetrain.simulate.recovery_estimate import closed_form
from pulsetrain.simulate.recovery_plan import RecoveryPlan
from tests.simulate.plans import gemini


def test_memory_wastes_far_less_than_storage():
    """Time lost to detection, fetching and computing again for one failure, without warm-up."""

    def wasted(plan):
        result = closed_form(plan)
        return (result.lost_s["fetch"] + result.lost_s["recompute"]) / result.failures

    memory = gemini(1)
    slow = RecoveryPlan(
        memory=False, failures_per_machine_day=1 / 16, storage_interval_s=10800, storage_fetch_s=481
    )
    assert wasted(slow) / wasted(memory) > 13


@given(
    st.integers(2, 64),
    st.floats(0.05, 4.0),
    st.floats(10, 600),
    st.floats(600, 20000),
    st.floats(0, 5),
    st.floats(0, 1),
    st.sampled_from(["ring", "mixed"]),
    st.booleans(),
)
def test_the_closed_form_agrees_within_five_percent(
    machines, per_day, memory_s, storage_s, stall_s, software, placement, memory
):
    plan = RecoveryPlan(
        machines=machines,
        failures_per_machine_day=per_day / machines,
        memory_interval_s=memory_s,
        memory_stall_s=min(stall_s, memory_s / 10),
        storage_interval_s=storage_s,
        storage_fetch_s=300,
        placement=placement,
        software_ratio=software,
        memory=memory,
        days=60,
    )
    simulated, expected = simulate(plan, runs=8), closed_form(plan)
    assert simulated.effective_ratio == pytest.approx(expected.effective_ratio, rel=0.05)


@given(st.floats(0, 20), st.floats(0, 20))
def test_more_failures_are_never_better(a, b):
    few, many = sorted((a, b))
    assert closed_form(gemini(many)).effective_ratio <= closed_form(gemini(few)).effective_ratio + 1e-12


def test_a_job_that_never_fails_loses_only_what_saving_takes():
    plan = RecoveryPlan(failures_per_machine_day=0, memory_stall_s=6.2, memory_interval_s=62)
    result = closed_form(plan)
    assert result.effective_ratio == pytest.approx(0.9)
    assert result.lost_s["saving"] == pytest.approx(0.1 * plan.days * 86400)
    assert result.failures == result.from_memory == result.from_storage == 0
