"""Ranks and steps as people type and read them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.selection import parse_ranks, parse_steps, ranges
from pulsetrain.core.errors import UsageError


@given(st.sets(st.integers(0, 500), max_size=60), st.sampled_from([",", ", "]))
def test_ranks_are_read_back_as_they_were_written(ranks, separator):
    assert parse_ranks(ranges(ranks, separator=separator)) == tuple(sorted(ranks))


@given(st.sets(st.integers(0, 500), max_size=60))
def test_no_two_ranges_touch(ranks):
    ends = [part.split("-") for part in ranges(ranks).split(",") if part]
    for before, after in pairwise(ends):
        assert int(after[0]) > int(before[-1]) + 1


@pytest.mark.parametrize("typed", ["x", "1-", "-1", "1-2-3", "0-9999", "9" * 5000, "7-4", "0, 7-4", " , "])
def test_text_that_names_no_ranks_is_refused(typed):
    with pytest.raises(UsageError, match="rank"):
        parse_ranks(typed)


def test_more_ranks_than_allowed_are_refused_and_no_ranks_are_none():
    assert parse_ranks("0-3", limit=4) == (0, 1, 2, 3)
    with pytest.raises(UsageError, match="at most 3 ranks"):
        parse_ranks("0-3", limit=3)
    assert parse_ranks(" ") == ()
    assert parse_ranks("0, 2,") == (0, 2)


@pytest.mark.parametrize("typed", ["a:b", "5:", "9:3", ":"])
def test_text_that_names_no_steps_is_refused(typed):
    with pytest.raises(UsageError, match="step"):
        parse_steps(typed)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_steps_are_read_as_typed(first, more):
    assert parse_steps(f" {first} : {first + more}") == (first, first + more)
    assert parse_steps(str(first)) == (first, first)
