"""Slow nodes by comparison with their peers, on published all-gather times and on any fleet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics.compare import slow_all_gathers, slow_checks, slowest_beside_fastest
from pulsetrain.diagnostics.measurement import Check
from pulsetrain.diagnostics.rounds import GroupResult


def timed(*tables: dict[str, float]) -> list[GroupResult]:
    return [GroupResult(members=(n,), ok=True, seconds=s) for t in tables for n, s in t.items()]


def reports(values):
    check = Check(name="gemm_speed", value=1.0, unit="FLOP/s", limit=0.0).row()
    return {n: [{**check, "value": v}] for n, v in values.items()}


def test_a_check_names_the_slow_node_whatever_the_order():
    values = {"a": 10.0, "b": 9.0, "c": 4.0, "d": 11.0}
    slow = slow_checks(reports(values))
    assert slow == {"c": ["gemm_speed"]}
    assert slow_checks(reports(dict(reversed(values.items())))) == slow


@pytest.mark.parametrize("values", [{}, {"a": 1.0}, {"a": 1.0, "b": 100.0}, {"a": 5.0, "b": 5.0, "c": 5.0}])
def test_a_check_needs_peers_and_a_difference(values):
    assert slow_checks(reports(values)) == {}


def test_a_check_that_is_only_right_or_wrong_is_not_compared():
    row = Check(name="gemm_checksum", value=3.0, unit="errors").row()
    assert slow_checks({n: [{**row, "value": v}] for n, v in (("a", 9.0), ("b", 9.0), ("c", 0.0))}) == {}


def test_published_times_name_node_1_and_not_the_unlucky_node_0():
    first = {"2": 20.3, "3": 20.3, "0": 206.9, "1": 151.8}
    second = {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}
    assert list(slow_all_gathers(timed(first, second))) == ["1"]


@given(st.integers(3, 40), st.data())
def test_half_a_fleet_of_slow_nodes_is_still_seen_and_a_slower_one_is_never_milder(count, data):
    nodes = [f"n{i:02d}" for i in range(count)]
    ill = data.draw(st.sets(st.sampled_from(nodes), max_size=count // 2))
    times = {n: 3.0 if n in ill else 1.0 for n in nodes}
    slow = slow_all_gathers(timed(times))
    assert set(slow) == ill
    for node in ill:
        worse = slow_all_gathers(timed(times | {node: 5.0}))
        assert worse[node] > slow[node]


@pytest.mark.parametrize("times", [{}, {"a": 1.0}, {"a": 1.0, "b": 50.0}, dict.fromkeys("abcd", 0.0)])
def test_too_little_to_compare_names_nobody(times):
    assert slow_all_gathers(timed(times)) == {}


def test_the_slowest_meet_the_fastest():
    results = [
        GroupResult(members=("a", "b"), ok=True, seconds=3.0),
        GroupResult(members=("c", "d", "e"), ok=True, seconds=1.0),
    ]
    assert slowest_beside_fastest(results, set("abcde")) == [("c", "b"), ("d", "a", "e")]
    assert slowest_beside_fastest(results, {"a", "d"}) == [("d", "a")]
    assert slowest_beside_fastest([], {"a"}) == []
