"""The wait before a launch: none after a first fault, and twice as long with each further one in a row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.back_off import PROGRESS_STEPS, BackOff, BackOffLimits
from pulsetrain.recovery.policy import Policy

LIMITS = BackOffLimits(first_s=1.0, most_s=60.0, progress_s=30.0)


def waits(*faults, limits=LIMITS):
    back_off = BackOff(limits)
    return [back_off.failed(step=step, ran_s=ran_s) for step, ran_s in faults]


def test_waits_double_up_to_the_longest():
    assert waits(*[(-1, 0.0)] * 10) == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_new_steps_make_the_next_fault_a_first_one():
    assert waits((9, 1), (9, 1), (10 + PROGRESS_STEPS, 1), (10 + PROGRESS_STEPS, 1)) == [0, 1, 0, 1]


def losses(nodes, step=-1):
    back_off = BackOff(LIMITS)
    return [back_off.lost(node, step=step, ran_s=1.0) for node in nodes]


def test_losses_of_one_node_in_a_row_wait_from_the_second_one_and_of_many_from_the_third():
    assert losses("aaaa") == [0, 1, 2, 4]
    assert losses("abcd") == [0, 0, 1, 2]
    assert losses("abab") == [0, 0, 1, 2]


def test_progress_forgives_losses_whatever_fault_follows_it():
    back_off = BackOff(LIMITS)
    assert [back_off.lost("a", step=3, ran_s=1.0) for _ in range(2)] == [0, 1]
    assert back_off.failed(step=3, ran_s=LIMITS.progress_s) == 0
    assert back_off.lost("a", step=3, ran_s=1.0) == 0


def test_losses_and_failures_count_apart():
    back_off = BackOff(LIMITS)
    assert [back_off.failed(step=3, ran_s=1.0), back_off.lost("a", step=3, ran_s=1.0)] == [0, 0]
    assert [back_off.failed(step=3, ran_s=1.0), back_off.lost("a", step=3, ran_s=1.0)] == [1, 1]


def test_a_node_that_was_not_lost_after_all_does_not_count():
    back_off = BackOff(LIMITS)
    back_off.lost("a", step=3, ran_s=1.0)
    back_off.found("a")
    assert back_off.lost("a", step=3, ran_s=1.0) == 0


def test_steps_that_are_done_again_are_no_progress():
    assert waits((100, 1), (90, 1), (100, 1), (102, 1)) == [0, 1, 2, 4]


def test_a_long_run_is_progress_also_without_a_step():
    assert waits((-1, 1), (-1, 1), (-1, 30), (-1, 1)) == [0, 1, 0, 1]


def test_with_0_nobody_waits():
    assert waits(*[(-1, 0.0)] * 5, limits=BackOffLimits(first_s=0.0, most_s=60.0, progress_s=30.0)) == [0] * 5


def test_a_million_faults_do_not_overflow():
    back_off = BackOff(LIMITS)
    back_off.failures = 10**6
    assert back_off.failed(step=-1, ran_s=0.0) == LIMITS.most_s


@given(st.lists(st.tuples(st.integers(-1, 50), st.floats(0, 60)), max_size=30))
def test_a_wait_is_never_negative_nor_too_long_and_a_first_fault_never_waits(faults):
    found = waits(*faults)
    assert all(0 <= wait <= LIMITS.most_s for wait in found)
    assert not any(wait for wait, (_, ran_s) in zip(found, faults, strict=True) if ran_s >= LIMITS.progress_s)
    assert found[:1] in ([], [0])


@pytest.mark.parametrize("key", ["restart_wait_s", "longest_restart_wait_s", "restart_progress_s"])
def test_a_wait_below_0_is_refused(key):
    with pytest.raises(ValueError, match=rf"{key} = -1: allowed 0 or more"):
        Policy(**{key: -1})
