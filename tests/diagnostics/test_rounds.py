"""Groups of a round and their results."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics.rounds import GroupResult, best_times, pairs_between, pairs_of, passed


@pytest.mark.parametrize(("count", "groups"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_pairs_cover_each_node_once(count, groups):
    nodes = [f"n{i}" for i in range(count)]
    planned = pairs_of(nodes)
    assert len(planned) == groups
    assert [n for g in planned for n in g] == (nodes if groups else [])
    assert all(len(g) in (2, 3) for g in planned)


SWITCHES = st.lists(st.sampled_from(["", "s0", "s1", "s2", "s3"]), max_size=20)


@given(SWITCHES)
def test_neighbours_are_under_one_switch_and_nobody_is_left_out(switches):
    nodes = {f"n{i}": switch for i, switch in enumerate(switches)}
    planned = pairs_of(list(nodes), nodes)
    members = [node for group in planned for node in group]
    assert sorted(members) == (sorted(nodes) if len(nodes) > 1 else [])
    assert all(len(g) in (2, 3) for g in planned)
    alone = {node for node in nodes if switches.count(nodes[node]) == 1}
    mixed = [g for g in planned if len({nodes[n] for n in g}) > 1]
    assert all(alone & set(group) for group in mixed)


@given(SWITCHES)
def test_pairs_between_switches_are_of_two_known_ones_and_use_no_node_twice(switches):
    nodes = {f"n{i}": switch for i, switch in enumerate(switches)}
    planned = pairs_between(list(nodes), nodes)
    members = [node for pair in planned for node in pair]
    assert len(members) == len(set(members))
    assert all("" not in {nodes[n] for n in pair} and len({nodes[n] for n in pair}) == 2 for pair in planned)
    left = {nodes[n] for n in nodes if n not in members} - {""}
    assert len(left) <= 1


def test_with_time_every_switch_meets_every_other_one():
    nodes = {f"{switch}{i}": switch for switch in "abcd" for i in range(6)}
    met = {tuple(sorted(nodes[n] for n in pair)) for pair in pairs_between(list(nodes), nodes)}
    assert len(met) == 6


def test_the_best_time_of_a_node_counts():
    first = {"2": 20.3, "3": 20.3, "0": 206.9, "1": 151.8}
    second = {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}
    results = [GroupResult(members=(n,), ok=True, seconds=s) for t in (first, second) for n, s in t.items()]
    assert best_times(results) == {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}


def test_a_failed_group_has_no_time_and_nobody_passed():
    failed = GroupResult(members=("a", "b"), ok=False, seconds=5.0, error="timeout", round=2, store="a")
    assert best_times([failed]) == {}
    assert passed([failed]) == set()
    assert json.loads(json.dumps(failed.row()))["members"] == ["a", "b"]
