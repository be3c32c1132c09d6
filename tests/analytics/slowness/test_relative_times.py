"""Times relative to a rank's own and to those of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness.relative_times import over_others, over_own_median, over_similar


@given(st.floats(0.1, 1e9))
def test_the_unit_of_time_does_not_matter(unit):
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]])
    assert over_own_median(values * unit) == pytest.approx(over_own_median(values))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_what_cannot_be_a_time_is_missing(bad):
    own = over_own_median(np.array([[1.0, bad, 1.0, 2.0], [bad, bad, bad, bad]]))
    assert np.isnan(own[0, 1])
    assert own[0, [0, 2, 3]].tolist() == [1.0, 1.0, 2.0]
    assert np.isnan(own[1]).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 9])
def test_a_step_that_is_long_for_all_is_nobodys(ranks):
    values = np.ones((ranks, 10))
    values[:, 4] = 7
    values[1, 6] = 2
    relative = over_others(values)
    assert relative[:, 4].tolist() == [1.0] * ranks
    assert relative[1, 6] == 2


def test_a_step_that_others_miss_has_nothing_to_compare_with():
    values = np.ones((3, 2))
    values[1:, 1] = np.nan
    assert np.isnan(over_others(values)[0, 1])
    assert over_others(values)[0, 0] == 1


def test_ranks_are_compared_with_those_that_usually_take_as_long():
    values = np.ones((7, 10))
    values[4:] = 1.5
    values[5, 3] = 3.0
    similar = over_similar(values)
    assert similar[5, 3] == 2.0
    assert similar[:4].tolist() == np.ones((4, 10)).tolist()
    assert np.isnan(over_similar(values[2:6])).all()  # two of each kind are too few
