"""Faults as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import ConfigError
from pulsetrain.faults import plan
from pulsetrain.faults.plan import Fault

faults = st.builds(
    Fault,
    kind=st.sampled_from(plan.KINDS),
    rank=st.integers(0, 1000),
    step=st.integers(0, 1000),
    until=st.integers(1000, 2000) | st.just(-1),
    phase=st.sampled_from(["", "forward", "data"]),
    attempt=st.integers(-1, 3),
    seconds=st.floats(0, 10),
    text=st.text(max_size=20),
)


@given(st.lists(faults, max_size=5))
def test_what_is_written_is_read(planned):
    assert plan.load({plan.ENVIRONMENT: plan.dump(planned)}) == tuple(planned)


@given(faults, st.integers(0, 1000), st.integers(0, 2000), st.integers(0, 3))
def test_a_fault_strikes_its_rank_in_its_steps_and_attempt(fault, rank, step, attempt):
    strikes = fault.strikes(rank=rank, step=step, attempt=attempt)
    inside = fault.step <= step <= max(fault.step, fault.until)
    assert strikes == (rank == fault.rank and inside and fault.attempt in (-1, attempt))


def test_no_variable_no_fault():
    assert plan.load({}) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "not a list of faults"),
        ("[3]", "needed: kind, rank, step"),
        ('[{"kind": "nan", "rank": 0}]', "needed: kind, rank, step"),
        ('[{"kind": "nan", "rank": 0, "step": 1, "sped": 2}]', "unknown key 'sped'; allowed: attempt, code"),
        ('[{"kind": "fire", "rank": 0, "step": 1}]', "fault kind 'fire': allowed abort"),
        ('[{"kind": "nan", "rank": -1, "step": 1}]', "must be 0 or more"),
        ('[{"kind": "nan", "rank": 0, "step": 5, "until": 2}]', "until 2 lies before step 5"),
        ('[{"kind": "sleep", "rank": 0, "step": 5, "seconds": -2}]', "seconds -2 must be 0 or more"),
    ],
)
def test_what_is_no_plan_is_refused_by_name(text, message):
    with pytest.raises(ConfigError, match=message):
        plan.load({plan.ENVIRONMENT: text})
