"""Planning and judging of the pairwise check, on vectors from published logs and on any set of faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics import pairwise
from pulsetrain.diagnostics.pairwise import Group, PairResult


def play(groups: Sequence[Group], broken: set[str]) -> list[PairResult]:
    """What real rounds would report: a group fails if any member is broken."""
    return [PairResult(members=g, ok=not broken & set(g), seconds=1.0) for g in groups]


def rounds(nodes: Sequence[str], broken: set[str], limit: int) -> list[PairResult]:
    results = play(pairwise.round_one(nodes), broken)
    plan: Callable[[Sequence[PairResult]], list[Group]] = pairwise.round_two
    for _ in range(limit - 1):
        groups = plan(results)
        if not groups:
            break
        results += play(groups, broken)
        plan = pairwise.next_round
    return results


def timed(*tables: dict[str, float]) -> list[PairResult]:
    return [PairResult(members=(n,), ok=True, seconds=s) for t in tables for n, s in t.items()]


def test_published_example_names_node_6():
    one = play(pairwise.round_one("123456"), {"6"})
    assert [r.members for r in one if not r.ok] == [("5", "6")]
    two = pairwise.round_two(one)
    assert two == [("1", "2"), ("3", "5"), ("4", "6")]
    assert list(pairwise.faulty([*one, *play(two, {"6"})])) == ["6"]


def test_the_best_time_of_a_node_counts():
    first = {"2": 20.3, "3": 20.3, "0": 206.9, "1": 151.8}
    second = {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}
    assert pairwise.best_times(timed(first, second)) == {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}


@pytest.mark.parametrize(("count", "groups"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_round_one_covers_each_node_once(count, groups):
    nodes = [f"n{i}" for i in range(count)]
    planned = pairwise.round_one(nodes)
    assert len(planned) == groups
    assert [n for g in planned for n in g] == (nodes if groups else [])
    assert all(len(g) in (2, 3) for g in planned)


def test_round_two_of_a_clean_fleet_puts_slowest_beside_fastest():
    results = [
        PairResult(members=("a", "b"), ok=True, seconds=3.0),
        PairResult(members=("c", "d", "e"), ok=True, seconds=1.0),
    ]
    assert pairwise.round_two(results) == [("c", "b"), ("d", "a", "e")]


def test_two_nodes_that_cannot_talk_are_in_doubt_not_at_fault():
    results = rounds(["a", "b"], {"b"}, limit=5)
    assert pairwise.faulty(results) == {}
    assert pairwise.undecided(results) == ["a", "b"]


def test_a_third_round_decides_where_suspects_outnumber_good_nodes():
    nodes = [f"n{i}" for i in range(6)]
    broken = {"n2", "n4"}  # four suspects, two good partners
    assert pairwise.undecided(rounds(nodes, broken, limit=2))
    results = rounds(nodes, broken, limit=3)
    assert set(pairwise.faulty(results)) == broken
    assert pairwise.undecided(results) == []


def test_a_healthy_node_paired_with_broken_ones_twice_is_not_named():
    results = [
        PairResult(members=("a", "x"), ok=False, seconds=0.0),
        PairResult(members=("a", "y"), ok=False, seconds=0.0),
    ]
    assert pairwise.faulty(results) == {}


@st.composite
def fleets(draw):
    count = draw(st.integers(2, 24))
    nodes = [f"n{i:02d}" for i in range(count)]
    return nodes, draw(st.sets(st.sampled_from(nodes)))


@given(fleets())
def test_every_identifiable_set_of_faults_is_identified_exactly(fleet):
    nodes, broken = fleet
    results = rounds(nodes, broken, limit=400)
    if len(nodes) - len(broken) >= 2:
        assert set(pairwise.faulty(results)) == broken
        assert pairwise.undecided(results) == []
    else:
        assert pairwise.faulty(results) == {}


@given(fleets(), st.integers(1, 6))
def test_no_healthy_node_is_ever_named_and_no_group_overlaps(fleet, limit):
    nodes, broken = fleet
    results = rounds(nodes, broken, limit)
    assert set(pairwise.faulty(results)) <= broken
    planned = pairwise.next_round(results)
    members = [n for g in planned for n in g]
    assert len(members) == len(set(members))
    assert all(len(g) >= 2 for g in planned)
