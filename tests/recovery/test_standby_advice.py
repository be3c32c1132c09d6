"""How many standbys a fleet needs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.standby_advice import FailureRecord, standbys_needed


def no_more_than(count, machines, rate):
    return sum(math.comb(machines, k) * rate**k * (1 - rate) ** (machines - k) for k in range(count + 1))


@given(st.integers(1, 300), st.floats(1e-5, 0.3))
def test_as_many_suffice_on_99_of_100_days_and_one_fewer_does_not(machines, rate):
    needed = standbys_needed(machines, rate)
    assert no_more_than(needed, machines, rate) >= 0.99 - 1e-9
    assert needed == 0 or no_more_than(needed - 1, machines, rate) < 0.99 + 1e-9


def test_a_hundred_thousand_machines_are_no_harder():
    assert 140 <= standbys_needed(100_000, 0.0012) <= 150


@pytest.mark.parametrize("arguments", [(0, 0.1), (5, 0.0), (5, 1.0), (5, float("nan"))])
def test_what_is_no_fleet_and_no_rate_is_refused_with_what_is_allowed(arguments):
    with pytest.raises(UsageError, match="allowed"):
        standbys_needed(*arguments)


def test_the_longer_the_record_the_less_the_published_rate_counts():
    rates = [FailureRecord(failures=n, machine_days=n * 100).daily_rate for n in (0, 1, 10, 1000)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.01, rel=0.02)
