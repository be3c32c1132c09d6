"""The simulator against its closed form, and against published figures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import ConfigError
from pulsetrain.simulate.recovery import RecoveryPlan, closed_form, simulate


def gemini(per_day: float, machines: int = 16) -> RecoveryPlan:
    """Gemini's own measurements: detect 15 s, serialise 162 s, warm up 240 s, an iteration of 62 s."""
    return RecoveryPlan(
        machines=machines,
        failures_per_machine_day=per_day / machines,
        memory_interval_s=62,
        memory_save_s=62,
        detect_s=15,
        peer_fetch_s=162,
        warm_up_s=240,
        storage_fetch_s=481,
        days=60,
    )


def high_frequency(per_day: float) -> RecoveryPlan:
    """Storage alone, as often as 20 Gbit/s allow: 9.4 GB x 128 in 481 s, after 81 s of serialising."""
    down_s = 15 + 481 + 240
    running = per_day / (1 - per_day * down_s / 86400)  # so that so many hit a job that runs
    return RecoveryPlan(
        memory=False,
        failures_per_machine_day=running / 16,
        storage_interval_s=562,
        storage_stall_s=81,
        storage_save_s=562,
        storage_fetch_s=481,
        detect_s=15,
        warm_up_s=240,
        days=60,
    )


@pytest.mark.parametrize(
    ("plan", "published"),
    [
        (gemini(8), 0.953),
        (gemini(15, 1000), 0.9115),
        (high_frequency(0), 0.856),
        (high_frequency(15), 0.582),
    ],
    ids=["8 a day", "1000 machines at 1.5 % a day", "storage only, no failure", "storage only, 15 a day"],
)
def test_published_efficiency_under_failures_is_within_ten_percent(plan, published):
    assert simulate(plan, runs=5).effective_ratio == pytest.approx(published, rel=0.1)
    assert closed_form(plan).effective_ratio == pytest.approx(published, rel=0.1)


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


@settings(max_examples=25, deadline=None)
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


def test_time_adds_up():
    plan = gemini(8)
    result = simulate(plan, runs=3)
    total = result.effective_ratio * plan.days * 86400 + sum(result.lost_s.values())
    assert total == pytest.approx(plan.days * 86400, rel=1e-6)


def test_one_seed_is_one_result():
    assert simulate(gemini(8), seed=3, runs=2) == simulate(gemini(8), seed=3, runs=2)
    assert simulate(gemini(8), seed=3, runs=2) != simulate(gemini(8), seed=4, runs=2)


def test_without_standbys_a_replacement_is_waited_for():
    with_standby = RecoveryPlan(failures_per_machine_day=0.2, replace_s=3600, standbys=5)
    without = RecoveryPlan(failures_per_machine_day=0.2, replace_s=3600, standbys=0)
    assert simulate(without).effective_ratio < simulate(with_standby).effective_ratio - 0.05
    assert simulate(without).effective_ratio == pytest.approx(closed_form(without).effective_ratio, rel=0.05)


@pytest.mark.parametrize("bad", [{"replicas": 17}, {"placement": "star"}, {"days": 0}, {"software_ratio": 2}])
def test_impossible_plans_are_refused(bad):
    with pytest.raises(ConfigError, match="allowed"):
        RecoveryPlan(**bad)
