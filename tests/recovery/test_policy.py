"""How far the controller may go by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.policy import EvictionBudget, Policy


@pytest.mark.parametrize(
    "change",
    [
        {"min_healthy_ratio": 1.1},
        {"min_healthy_ratio": -0.1},
        {"evictions_per_hour": -1},
        {"check_level": "deep"},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Policy(**change)


def test_the_budget_is_free_again_after_an_hour():
    budget = EvictionBudget(Policy(evictions_per_hour=1))
    budget.spend(0.0)
    assert "budget of 1" in budget.refusal(now_s=3600.0, known=9, healthy=8)
    assert budget.refusal(now_s=3600.1, known=9, healthy=8) == ""


def test_the_floor_of_healthy_nodes_is_kept():
    budget = EvictionBudget(Policy(min_healthy_ratio=0.5))
    assert budget.refusal(now_s=0.0, known=4, healthy=2) == ""
    assert budget.refusal(now_s=0.0, known=4, healthy=1) == "only 1 of 4 nodes would stay; floor 50%"


@given(st.lists(st.floats(0, 10_000), max_size=40), st.integers(0, 5))
def test_no_hour_ever_sees_more_evictions_than_the_budget(times, limit):
    budget, spent = EvictionBudget(Policy(evictions_per_hour=limit)), []
    for now_s in sorted(times):
        if not budget.refusal(now_s=now_s, known=10, healthy=9):
            budget.spend(now_s)
            spent.append(now_s)
    assert all(sum(t <= u <= t + 3599 for u in spent) <= limit for t in spent)
