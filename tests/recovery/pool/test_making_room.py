"""Making room takes the cheapest, moves the fewest, and changes nothing where it does not help."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.recovery.pool.allocation import Allocation
from pulsetrain.recovery.pool.demand import Prices
from pulsetrain.recovery.pool.making_room import can_reclaim, defragment, reclaim
from tests.recovery.pool.jobs import EAGER, job


def state(allocation):
    return {name: dict(placed) for name, placed in allocation.placed.items()}, dict(allocation.free)


def test_the_node_with_the_fewest_moves_is_cleared():
    small = [job(f"s{i}", "standard", 1, placed={n: 1}, promised=True) for i, n in enumerate("aab")]
    whole = job("w", "standard", 1, unit=4, promised=True)
    allocation = Allocation({"a": 4, "b": 4}, [*small, whole], EAGER)
    assert defragment(allocation, whole, 1)
    assert allocation.placed["s2"] == {"a": 1}
    assert allocation.free["b"] == 4
    assert allocation.why == {"s2": "makes room for standard job w"}


def test_jobs_that_were_just_changed_are_not_moved_for_a_basic_job():
    small = job("s", "basic", 1, placed={"a": 1}, still_s=10.0)
    other, whole = job("t", "basic", 1, placed={"b": 1}, still_s=10.0), job("w", "basic", 1, unit=2)
    allocation = Allocation({"a": 2, "b": 2}, [small, other, whole], EAGER)
    before = state(allocation)
    assert not defragment(allocation, whole, 1)
    assert state(allocation) == before


@pytest.mark.parametrize(("tier", "moves"), [("basic", False), ("premium", True)])
def test_a_job_that_a_move_may_cost_all_its_steps_is_moved_for_a_promise_alone(tier, moves):
    small = [job(n, "basic", 1, placed={n: 1}, may_lose_all=True) for n in "ab"]
    whole = job("w", tier, 1, unit=2, promised=tier == "premium")
    allocation = Allocation({"a": 2, "b": 2}, [*small, whole], EAGER)
    assert defragment(allocation, whole, 1) == moves


def test_nothing_moves_where_pauses_cost_more_than_they_bring():
    dear = Prices(pause_s=1000.0, horizon_s=10.0, reserve_ratio=0.0)
    small = [job(n, "basic", 1, placed={n: 1}) for n in "ab"]
    whole = job("w", "basic", 1, unit=2)
    allocation = Allocation({"a": 2, "b": 2}, [*small, whole], dear)
    before = state(allocation)
    assert not defragment(allocation, whole, 1)
    assert state(allocation) == before


def test_a_large_job_is_not_stopped_for_a_small_one_where_a_small_one_can_be():
    large = job("large", "basic", 4, placed={"a": 4})
    small = job("small", "basic", 1, placed={"b": 1})
    premium = job("p", "premium", 1, promised=True)
    allocation = Allocation({"a": 4, "b": 1}, [large, small, premium], EAGER)
    assert reclaim(allocation, premium, 1)
    assert allocation.placed["large"] == {"a": 4}


def test_what_cannot_be_reclaimed_changes_nothing():
    basic = [job(n, "basic", 1, placed={n: 1}) for n in "ab"]
    premium = job("p", "premium", 3, promised=True)
    allocation = Allocation({"a": 1, "b": 1}, [*basic, premium], EAGER)
    before = state(allocation)
    assert not can_reclaim(allocation, premium, 3)
    assert not reclaim(allocation, premium, 3)
    assert (state(allocation), allocation.why) == (before, {})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.integers(1, 3))
def test_as_few_moves_as_any_plan_needs(used, blocks):
    """Jobs of one device each on nodes of four. All sets of nodes that could be cleared are tried."""
    nodes = {f"n{i}": 4 for i in range(len(used))}
    names = [(node, k) for node, count in zip(nodes, used, strict=True) for k in range(count)]
    small = [job(f"{node}-{k}", "basic", 1, placed={node: 1}) for node, k in names]
    whole = job("w", "premium", blocks, unit=4, promised=True)
    allocation = Allocation(nodes, [*small, whole], EAGER)
    before = {name: dict(placed) for name, placed in allocation.placed.items()}
    free = 4 * len(used) - sum(used)
    possible = [sum(chosen) for chosen in combinations(used, blocks)] if free >= 4 * blocks else []
    done = allocation.fits(whole) >= blocks or defragment(allocation, whole, blocks)
    assert done == bool(possible)
    moved = sum(before[name] != placed for name, placed in allocation.placed.items())
    assert moved == (min(possible) if possible else 0)
    assert all(0 <= devices <= 4 for devices in allocation.free.values())
