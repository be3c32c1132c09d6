"""Batches and power that keep step times equal."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import ConfigError, UsageError
from pulsetrain.elastic import exchange, shard_mapping, unequal_batch, unequal_groups
from pulsetrain.elastic.unequal_batch import PowerModel, deal_batch, local_batch


@settings(max_examples=40)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_a_smaller_replica_never_takes_longer_and_gets_all_that_fits(batch, one, other):
    degree, full = sorted((one, other))
    mine = local_batch(batch, degree, full)
    assert mine * full <= batch * degree
    assert (mine + 1) * full > batch * degree


def test_power_keeps_the_whole_batch_up_to_its_limit():
    power = PowerModel(limit=1.3, exponent=0.5)
    assert power.needed(30, 32) == pytest.approx((32 / 30) ** 2)
    assert [local_batch(8, degree, 32, power) for degree in (32, 31, 30, 29)] == [8] * 4
    assert power.needed(24, 32) > 1.3
    assert local_batch(16, 24, 32) < local_batch(16, 24, 32, power) < 16
    assert power.speed(31, 32) == pytest.approx(32 / 31)  # no more than is needed


@settings(max_examples=30)
@given(st.integers(0, 60), st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_a_global_batch_is_dealt_whole_and_no_other_deal_ends_sooner(samples, speeds):
    dealt = deal_batch(samples, speeds)
    assert sum(dealt) == samples
    slowest = max(count / speed for count, speed in zip(dealt, speeds, strict=True))
    for count, speed in zip(dealt, speeds, strict=True):
        assert (count + 1) / speed >= slowest - 1e-9
    assert deal_batch(samples, speeds[::-1]) == pytest.approx(dealt[::-1], abs=1)


@pytest.mark.parametrize("bad", [{"limit": 0.9}, {"exponent": 0.0}, {"exponent": 1.5}])
def test_impossible_power_is_refused(bad):
    with pytest.raises(ConfigError, match="power"):
        PowerModel(**bad)


def test_impossible_batches_are_refused():
    with pytest.raises(UsageError, match="allowed"):
        local_batch(8, 9, 8)
    with pytest.raises(UsageError, match="allowed"):
        deal_batch(4, [])


def test_examples_in_docstrings_hold():
    modules = (exchange, shard_mapping, unequal_batch, unequal_groups)
    assert sum(doctest.testmod(module).failed for module in modules) == 0
