"""Which optimizers make a step: a cycle ends with its last optimizer, and the first repetition shows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.rank.auto.cycle import OptimizerCycle


def closed_after(keys):
    """After how many optimizer steps each cycle was over, as a loop learns it."""
    cycle, closed, ended = OptimizerCycle(), [], 0
    for i, key in enumerate(keys):
        if cycle.begin(key) and ended:
            closed.append(ended)
        ended = i + 1
        if cycle.end(key):
            closed.append(ended)
            ended = 0
    return closed


def test_one_optimizer_is_a_cycle():
    assert closed_after("AAAA") == [1, 2, 3, 4]


def test_a_critic_that_steps_more_often_is_a_step_each_time():
    assert closed_after("CCCGCCCG") == [1, 2, 3, 5, 6, 7]


def test_an_optimizer_that_is_no_longer_used_is_forgotten():
    assert closed_after("ABABAAA")[:4] == [2, 4, 5, 6]


@given(st.integers(1, 6), st.integers(2, 6))
def test_any_repeating_sequence_gives_one_step_a_round(optimizers, rounds):
    keys = list(range(optimizers)) * rounds
    assert closed_after(keys) == [optimizers * (i + 1) for i in range(rounds)]
