"""Numbers as people read them, selections as people type them."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics import selection
from pulsetrain.analytics.selection import parse_ranks, parse_steps
from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard.models import text
from pulsetrain.dashboard.models.steps import Window, sample, window
from pulsetrain.dashboard.models.text import ago, clock, duration, fold, size


@pytest.mark.parametrize("module", [text, selection])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(None, "-"), (float("nan"), "-"), (0, "0 ns"), (999, "999 ns"), (7_500 * 10**9, "2 h 05 min")],
)
def test_durations(ns, shown):
    assert duration(ns) == shown


def test_moments_that_nobody_knows():
    assert (ago(0, 5), ago(None, 5), clock(0)) == ("never", "never", "-")
    assert ago(10, 5) == "just now"
    assert size(None) == "-"
    assert size(5 * 2**40) == "5.00 TiB"


@given(st.sets(st.integers(0, 300), max_size=60))
def test_ranks_fold_and_parse_back(ranks):
    assert set(parse_ranks(fold(ranks))) == ranks


@pytest.mark.parametrize("typed", ["x", "1-", "-1", "1-2-3", "0-9999"])
def test_ranks_that_are_none(typed):
    with pytest.raises(UsageError, match="rank"):
        parse_ranks(typed)


@pytest.mark.parametrize("typed", ["a:b", "5:", "9:3", ":"])
def test_steps_that_are_none(typed):
    with pytest.raises(UsageError, match="step"):
        parse_steps(typed)


JOBS = [{"job": "gpt", "first_step": 50, "last_step": 60}]


def test_a_window_is_what_was_typed_else_the_newest_steps_on_record():
    typed = window([], "gone", steps="3:4", last=5)
    assert typed is not None
    assert str(typed) == "3 to 4"
    newest = window(JOBS, "gpt", steps="", last=5)
    assert newest is not None
    assert (newest.first, newest.last) == (56, 60)
    all_of_it = window(JOBS, "gpt", steps="", last=1000)
    assert all_of_it is not None
    assert all_of_it.first == 50
    assert window(JOBS, "gone", steps="", last=5) is None


def test_a_large_job_is_sampled_and_a_small_one_is_not():
    assert sample([{"job": "big", "ranks": 12_288}], "big") == 8
    assert sample([{"job": "big", "ranks": 10**6}], "big") == 4
    assert sample([{"job": "gpt", "ranks": 8}], "gpt") == 12_500
    assert Window(first=3, last=5).width == 3
