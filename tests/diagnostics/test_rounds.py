"""Groups of a round and their results."""

from __future__ import annotations

import json

import pytest

from pulsetrain.diagnostics.rounds import GroupResult, best_times, pairs_of, passed


@pytest.mark.parametrize(("count", "groups"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_pairs_cover_each_node_once(count, groups):
    nodes = [f"n{i}" for i in range(count)]
    planned = pairs_of(nodes)
    assert len(planned) == groups
    assert [n for g in planned for n in g] == (nodes if groups else [])
    assert all(len(g) in (2, 3) for g in planned)


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
