"""Group tests for faulty nodes: a few faults are found exactly, in few rounds, and nobody else is blamed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics.faulty_nodes import (
    FAILURES,
    FaultVerdict,
    information_bound_tests,
    judge,
    next_round,
    rounds_bound,
)
from pulsetrain.diagnostics.rounds import Group, GroupResult


def names(count: int) -> list[str]:
    return [f"n{i:02d}" for i in range(count)]


class Fleet:
    """Answers as a fleet with these faults would. `glitches`: nodes that fail in one round for no reason."""

    def __init__(
        self, nodes, broken=(), links=(), glitches=(), store=lambda number: "", failures=FAILURES, switches=()
    ):
        self.switches = dict(switches)
        self.nodes, self.broken, self.links, self.store = nodes, set(broken), links, store
        self.glitches, self.failures = dict(glitches), failures
        self.results: list[GroupResult] = []
        self.rounds = 0

    def fails(self, group: Group) -> bool:
        number, store = self.rounds, self.store(self.rounds)
        return (
            bool(self.broken & {*group, store})
            or any(set(link) <= set(group) for link in self.links)
            or bool(self.glitches.get(number, set()) & set(group))
        )

    def ask(self, groups: Sequence[Group]) -> None:
        members = [n for g in groups for n in g]
        assert len(members) == len(set(members))
        assert all(len(g) >= 2 for g in groups)
        store = self.store(self.rounds)
        self.results += [
            GroupResult(members=g, ok=not self.fails(g), seconds=1.0, round=self.rounds, store=store)
            for g in groups
        ]
        self.rounds += 1

    def play(self, limit: int = 200) -> FaultVerdict:
        while self.rounds < limit and (
            groups := next_round(self.nodes, self.results, failures=self.failures, switches=self.switches)
        ):
            self.ask(groups)
        return judge(self.nodes, self.results, failures=self.failures)


def exact(verdict: FaultVerdict, broken: Collection[str]) -> bool:
    return (set(verdict.faulty), verdict.links, verdict.reason) == (set(broken), {}, "")


def test_published_example_names_node_6_in_two_rounds():
    fleet = Fleet(list("123456"), {"6"})
    assert list(fleet.play().faulty) == ["6"]
    assert fleet.rounds == 2
    assert next(r.members for r in fleet.results if not r.ok) == ("5", "6")


@pytest.mark.parametrize("failures", [2, 3])
@pytest.mark.parametrize("count", range(3, 9))
def test_every_set_of_faults_that_leaves_two_good_nodes_is_found_exactly(count, failures):
    nodes = names(count)
    for k in range(count - 1):
        for broken in itertools.combinations(nodes, k):
            fleet = Fleet(nodes, broken, failures=failures)
            assert exact(fleet.play(), broken), broken
            assert fleet.rounds <= rounds_bound(count, k, failures=failures)


@given(st.integers(20, 100), st.integers(0, 4), st.randoms(use_true_random=False))
def test_up_to_four_faults_of_many_nodes_take_three_rounds(count, k, random):
    nodes = names(count)
    broken = random.sample(nodes, k)
    fleet = Fleet(nodes, broken)
    assert exact(fleet.play(), broken)
    assert fleet.rounds <= rounds_bound(count, k) == (1, 2 + count % 2, 3, 3, 3)[k]


@pytest.mark.parametrize(("slowest_s", "named"), [(1.0, ["d"]), (2.0, [])])
def test_a_group_that_was_given_up_counts_only_if_it_had_far_longer_than_those_that_passed(slowest_s, named):
    pairs = {("a", "b"): True, ("c", "d"): False, ("c", "a"): True, ("d", "b"): False}
    results = [
        GroupResult(members=m, ok=ok, seconds=1.0, took_s=slowest_s if ok else 5.0, given_up=not ok)
        for m, ok in pairs.items()
    ]
    verdict = judge("abcd", results)
    assert list(verdict.faulty) == named
    assert bool(verdict.reason) == (not named)
    failed_by_themselves = [dataclasses.replace(r, given_up=False) for r in results]
    assert list(judge("abcd", failed_by_themselves).faulty) == ["d"]


@given(st.integers(4, 12), st.lists(st.integers(2, 9), min_size=2, max_size=4), st.data())
def test_with_switches_faults_are_found_as_exactly_and_a_round_later_at_most(spare, sizes, data):
    """An odd number of nodes under any switch counts as an odd number of nodes."""
    sizes = [*sizes, 2 * spare]
    switches = {f"s{s}n{i}": f"s{s}" for s, size in enumerate(sizes) for i in range(size)}
    nodes = list(switches)
    broken = data.draw(st.sets(st.sampled_from(nodes), max_size=2))
    fleet = Fleet(nodes, broken, switches=switches)
    assert exact(fleet.play(), broken)
    assert fleet.rounds <= 3 + any(size % 2 for size in sizes)
    failed = [{switches[n] for n in r.members} for r in fleet.results if not r.ok]
    if len(broken) == 1 and sizes[int(failed[0].pop()[1:])] in (4, 6, 8):
        assert all(len(under) == 1 for under in failed[1:])


@given(st.integers(2, 40), st.data())
def test_no_healthy_node_is_blamed_whatever_fails_and_whenever_it_ends(count, data):
    nodes = names(count)
    fleet = Fleet(nodes, data.draw(st.sets(st.sampled_from(nodes))))
    verdict = fleet.play(limit=data.draw(st.integers(1, 8)))
    assert set(verdict.faulty) <= fleet.broken
    assert verdict.links == {}
    if set(verdict.faulty) != fleet.broken:
        assert verdict.reason


@given(st.integers(3, 40), st.data())
def test_renaming_nodes_renames_the_answer(count, data):
    nodes = names(count)
    renamed = dict(zip(nodes, data.draw(st.permutations(nodes)), strict=True))
    broken = data.draw(st.sets(st.sampled_from(nodes), max_size=6))
    one, other = Fleet(nodes, broken), Fleet([renamed[n] for n in nodes], {renamed[n] for n in broken})
    assert [renamed[n] for n in one.play().faulty] == list(other.play().faulty)
    assert one.rounds == other.rounds


@given(st.integers(6, 40), st.data())
def test_a_link_between_good_nodes_is_named_and_its_nodes_are_not(count, data):
    nodes = names(count)
    pair = data.draw(st.integers(0, count // 2 - 1))
    link = (nodes[2 * pair], nodes[2 * pair + 1])
    others = [n for n in nodes if n not in link]
    broken = data.draw(st.sets(st.sampled_from(others), max_size=min(2, len(others) - 3)))
    verdict = Fleet(nodes, broken, [link]).play()
    assert (set(verdict.faulty), set(verdict.links), verdict.reason) == (broken, {link}, "")


@pytest.mark.parametrize("count", range(6, 41))
def test_a_link_beside_each_single_faulty_node_is_named(count):
    nodes = names(count)
    for pair in range(count // 2):
        link = (nodes[2 * pair], nodes[2 * pair + 1])
        for broken in set(nodes) - set(link):
            verdict = Fleet(nodes, {broken}, [link]).play()
            assert (set(verdict.faulty), set(verdict.links), verdict.reason) == ({broken}, {link}, "")


def test_a_link_inside_the_group_of_three_is_told_from_its_nodes():
    verdict = Fleet(names(7), links=[("n04", "n06")]).play()
    assert (verdict.faulty, list(verdict.links)) == ({}, [("n04", "n06")])


def test_a_failure_that_does_not_happen_again_blames_nobody():
    fleet = Fleet(names(16), glitches={0: {"n02"}})
    verdict = fleet.play()
    assert (verdict.state, verdict.faulty, verdict.links) == ("inconclusive", {}, {})
    assert verdict.unsteady == (("n02", "n03"),)
    assert "n02 and n03" in verdict.reason


def test_a_fault_is_still_found_beside_a_failure_that_does_not_happen_again_by_more_witnesses():
    fleet = Fleet(names(16), {"n09"}, glitches={0: {"n02"}})
    verdict = fleet.play()
    assert list(verdict.faulty) == ["n09"]
    assert len({n for r in fleet.results if "n09" in r.members for n in r.members}) == 1 + 4


def test_where_answers_change_too_often_nobody_is_named():
    glitches = {0: {"n00", "n02", "n04", "n06"}}
    verdict = Fleet(names(16), {"n15"}, glitches=glitches).play()
    assert (verdict.state, verdict.faulty) == ("inconclusive", {})
    assert "without a reason" in verdict.reason


@pytest.mark.parametrize("count", [3, 4, 6, 64])
def test_where_all_fail_nobody_is_named_and_the_search_ends(count):
    fleet = Fleet(names(count), names(count))
    verdict = fleet.play()
    assert (verdict.state, verdict.faulty) == ("inconclusive", {})
    assert "no group passed" in verdict.reason
    assert fleet.rounds <= 8


def test_two_nodes_that_cannot_talk_are_in_doubt_not_at_fault():
    verdict = Fleet(["a", "b"], {"b"}).play()
    assert (verdict.state, verdict.undecided) == ("inconclusive", ("a", "b"))
    assert "2 nodes" in verdict.reason


def test_without_a_test_nothing_is_known():
    assert judge(["a"], []).state == "inconclusive"


@pytest.mark.parametrize("broken", [{"n00"}, {"n00", "n05"}, {"n00", "n01"}])
def test_a_store_that_nobody_reaches_is_no_evidence_against_the_others(broken):
    nodes = names(12)
    fleet = Fleet(nodes, broken, store=lambda number: nodes[min(number, 2)])
    assert exact(fleet.play(), broken)


@pytest.mark.parametrize(("stores", "named"), [("a", []), ("ac", ["h"]), ("ae", ["h"]), ("ah", [])])
def test_stores_that_a_node_did_not_reach_count_by_the_good_nodes_that_have_them(stores, named):
    results = [
        GroupResult(
            members=pair,
            ok=pair[1] != "h",
            seconds=1.0,
            round=number,
            store=store,
            unreached=("h",) if pair[1] == "h" else (),
        )
        for number, store in enumerate(stores)
        for pair in (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"))
    ]
    verdict = judge("abcdefgh", results)
    assert sorted(verdict.faulty) == named
    assert set(verdict.undecided) == {"g", "h"} - set(named)


def test_a_path_between_good_nodes_is_told():
    pairs = [GroupResult(members=pair, ok=True, seconds=1.0, store="a") for pair in (("a", "b"), ("c", "d"))]
    missed = GroupResult(members=("d", "b"), ok=False, seconds=1.0, round=1, store="a", unreached=("d",))
    verdict = judge("abcd", [*pairs, missed])
    assert (verdict.faulty, verdict.reason) == ({}, "d did not reach the store on a")


def test_the_reason_names_the_witnesses_and_the_first_error():
    results = [
        GroupResult(members=("a", "b"), ok=True, seconds=1.0),
        GroupResult(members=("c", "d"), ok=False, seconds=1.0, error="d: refused"),
        GroupResult(members=("c", "a"), ok=True, seconds=1.0, round=1),
        GroupResult(members=("d", "b"), ok=False, seconds=1.0, round=1),
    ]
    reason = "all-gather with c, b failed, which passed elsewhere: d: refused"
    assert judge(list("abcd"), results).faulty == {"d": reason}


def test_a_healthy_node_that_was_only_beside_broken_ones_is_not_named():
    results = [
        GroupResult(members=("a", "x"), ok=False, seconds=0.0),
        GroupResult(members=("b", "c"), ok=True, seconds=0.0),
        GroupResult(members=("a", "y"), ok=False, seconds=0.0, round=1),
    ]
    verdict = judge(list("axbcy"), results)
    assert (verdict.faulty, verdict.undecided) == ({}, ("a", "x", "y"))


@pytest.mark.parametrize(("nodes", "faulty"), [(64, 63), (64, 60), (2, 1)])
def test_too_few_good_nodes_have_no_bound(nodes, faulty):
    with pytest.raises(ValueError, match="too few good ones"):
        rounds_bound(nodes, faulty)


def test_the_bound_of_information_counts_the_cases():
    assert [information_bound_tests(64, k) for k in range(5)] == [0, 7, 12, 16, 20]
