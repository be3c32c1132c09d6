"""Hourly shares of a job's ideal work."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.pool import account as module
from pulsetrain.recovery.pool.account import ShareAccount


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_the_rest_of_the_last_hour_counts_with_the_hour_before():
    account = ShareAccount(0.0)
    account.add(3600.0, 1.0)
    account.add(3660.0, 0.0)
    account.close()
    assert account.hours == [pytest.approx(3600 / 3660)]


def test_a_job_of_less_than_an_hour_is_one_hour():
    account = ShareAccount(100.0)
    account.add(400.0, 0.5)
    account.close()
    assert account.hours == [0.5]
    account.close()
    assert account.hours == [0.5]


def test_time_that_may_still_be_lost():
    account = ShareAccount(0.0)
    account.add(600.0, 0.0)
    assert account.may_lose_s(0.70, 1.0) == pytest.approx(0.3 * 3600 - 600)
    assert account.may_lose_s(0.70, 0.75) == 0.0
    assert account.may_lose_s(0.95, 1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 9000), st.floats(0, 1)), min_size=1, max_size=8))
def test_hours_hold_all_the_work(pieces):
    account, until_s, work = ShareAccount(50.0), 50.0, 0.0
    for seconds, share in pieces:
        until_s += seconds
        work += seconds * share
        account.add(until_s, share)
    account.close()
    lengths = [3600.0] * len(account.hours)
    lengths[-1] += until_s - 50.0 - sum(lengths)
    assert sum(h * s for h, s in zip(account.hours, lengths, strict=True)) == pytest.approx(work)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in account.hours)
