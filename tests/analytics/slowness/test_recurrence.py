"""Where a sequence of operations repeats itself."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import recurrence


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(8, 20))
def test_a_sequence_that_repeats_itself_has_a_period_that_divides_it(once, times):
    kinds = np.array(once * times)
    length = recurrence.periods(kinds)[-1]
    assert (kinds[length:] == kinds[:-length]).all()


def test_an_evaluation_now_and_then_does_not_hide_the_period():
    kinds = np.array((([1, 2, 3, 3, 4] * 50) + [9, 9, 9]) * 6)
    assert recurrence.periods(kinds)[0] == 5
    ends = recurrence.endings(kinds, np.array([1, 2, 3, 3, 4]))
    assert len(ends) == 300
    assert (kinds[ends] == 4).all()


def test_what_does_not_repeat_itself_has_none():
    kinds = np.random.default_rng(0).integers(0, 50, 4000)
    assert recurrence.periods(kinds) == []
    assert recurrence.periods(kinds[:0]) == recurrence.periods(kinds[:3]) == []


def test_thousands_of_operations_a_step_are_a_period():
    once = np.random.default_rng(0).integers(0, 6, 5000)
    assert recurrence.periods(np.tile(once, 6))[-1] == 5000
