"""Tiers, allowed sizes and floors of a job."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.pool import demand
from pulsetrain.recovery.pool.demand import GUARANTEE, Tier, rank_of, tier_of
from tests.recovery.pool.jobs import demands, job


def test_examples():
    assert doctest.testmod(demand).failed == 0


def test_a_tier_that_is_not_there_is_named():
    assert tier_of("basic") is Tier.BASIC
    with pytest.raises(UsageError, match="tier = 'gold': allowed: premium, standard, basic"):
        tier_of("gold")


def test_ranks_go_from_promised_premium_to_basic():
    assert [rank_of(tier) for tier in Tier] == [0, 1, 2]
    ranks = [job("j", t, 1, promised=p).rank for t, p in (("premium", True), ("standard", True))]
    assert ranks == [0, 1]
    waiting = [job("j", tier, 1).rank for tier in ("premium", "standard", "basic")]
    assert waiting == [2, 2, 3]


@given(demands(0), st.floats(0, 0.3))
def test_the_floor_is_an_allowed_size_that_keeps_the_guarantee(each, margin):
    floor = each.floor(margin)
    assert floor == 0 or each.fit(floor) == floor
    assert floor >= min(GUARANTEE[each.tier] * each.most, each.fit(each.most)) - 1e-9
