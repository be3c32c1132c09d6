"""Which node a replay in groups names. Faults are drawn, and any group with a faulty node fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics.replay_groups import (
    ReplayPlan,
    ReplayResult,
    first_groups,
    group_size,
    second_groups,
)


def replayed(nodes, size, fails):
    """Run all phases. `fails(group, phase)` says whether a group fails."""
    plan = ReplayPlan(nodes, size)
    while groups := plan.next_phase():
        phase = plan.phases - 1
        plan.take(
            ReplayResult(members=g, ok=not fails(g, phase), error="nan" * fails(g, phase), phase=phase)
            for g in groups
        )
    return plan


def names(number):
    return [f"n{i:02}" for i in range(number)]


def always(faulty):
    return lambda group, phase: not {*faulty}.isdisjoint(group)


def test_the_example_of_the_paper():
    nodes = names(24)
    (horizontal,) = [g for g in first_groups(nodes, 4) if "n13" in g]
    (vertical,) = [g for g in second_groups(nodes, 4) if "n13" in g]
    assert (horizontal, vertical) == (("n12", "n13", "n14", "n15"), ("n01", "n07", "n13", "n19"))
    plan = replayed(nodes, 4, always(["n13"]))
    assert (list(plan.verdict().named), plan.phases) == (["n13"], 2)


@given(st.integers(2, 70), st.sampled_from([0, 2, 3, 4, 8]), st.data())
def test_one_faulty_node_is_named_and_nobody_else(number, wanted, data):
    size = group_size(number, wanted)
    nodes = names(number)
    if size:
        faulty = data.draw(st.sampled_from(nodes))
        plan = replayed(nodes, size, always([faulty]))
        assert list(plan.verdict().named) == [faulty]
        assert plan.phases <= 4


@given(st.integers(16, 70), st.data())
def test_two_faulty_nodes_are_named_as_well(number, data):
    nodes = names(number)
    faulty = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique=True))
    plan = replayed(nodes, 2, always(faulty))
    assert sorted(plan.verdict().named) == sorted(faulty)


@given(st.integers(4, 40), st.sets(st.integers(0, 39)))
def test_who_is_named_failed_twice_beside_different_nodes_that_passed_and_never_passed(number, flaky):
    """Groups fail at random."""
    nodes, count = names(number), iter(range(10_000))
    plan = replayed(nodes, group_size(number, 0), lambda group, phase: next(count) in flaky)
    passed = {node for result in plan.results if result.ok for node in result.members}
    for node in plan.verdict().named:
        failed = [{*r.members} - {node} for r in plan.results if not r.ok and node in r.members]
        alone = [companions for companions in failed if companions <= passed]
        assert node not in passed
        assert len({frozenset(companions) for companions in alone}) >= 2


@given(st.integers(4, 40), st.data())
def test_a_faulty_node_and_one_group_that_fails_by_chance_never_name_a_healthy_node(number, data):
    nodes = names(number)
    faulty = data.draw(st.sampled_from(nodes))
    chance = data.draw(st.integers(0, 2 * number))
    count = iter(range(10_000))
    plan = replayed(
        nodes, group_size(number, 0), lambda group, phase: (next(count) == chance) | (faulty in group)
    )
    assert {*plan.verdict().named} <= {faulty}


@given(st.integers(4, 41), st.data())
def test_a_node_that_fails_now_and_then_never_names_another_one(number, data):
    nodes = names(number)
    faulty = data.draw(st.sampled_from(nodes))
    now_and_then = data.draw(st.sets(st.integers(0, 3)))
    plan = replayed(
        nodes, group_size(number, 0), lambda group, phase: faulty in group and phase in now_and_then
    )
    assert {*plan.verdict().named} <= {faulty}


@given(st.integers(2, 40), st.sampled_from([0, 2, 3]), st.sets(st.integers(0, 39)))
def test_no_node_in_doubt_meets_another_one_twice(number, wanted, flaky):
    size = group_size(number, wanted)
    if size < 2:
        return
    count, groups = iter(range(10_000)), []
    plan = replayed(names(number), size, lambda group, phase: next(count) in flaky)
    for result in plan.results:
        tried = result.members if result.phase < 2 else result.members[:1]
        assert all(len({*result.members} & {*other}) <= 1 for other in groups if {*tried} & {*other})
        groups.append(result.members)


def test_nodes_of_groups_that_say_nothing_are_told():
    plan = ReplayPlan(names(4), 2)
    for _ in range(2):
        groups = plan.next_phase()
        plan.take(ReplayResult(members=g, ok=True) for g in groups if "n03" not in g)
    while groups := plan.next_phase():
        plan.take([])
    assert plan.verdict().reason == "the fault did not come again. Nothing is known of n03"
    nothing = ReplayPlan(names(4), 2)
    nothing.next_phase()
    nothing.take([])
    assert nothing.next_phase() == []
    assert nothing.verdict().reason == "nothing could be replayed"


@given(st.integers(2, 64), st.sampled_from([0, 2, 3, 4]))
def test_no_two_nodes_are_together_in_both_phases(number, wanted):
    nodes, size = names(number), group_size(number, wanted)
    if size:
        first, second = first_groups(nodes, size), second_groups(nodes, size)
        assert all(len({*a} & {*b}) <= 1 for a in first for b in second)
        assert {n for g in first for n in g} == {n for g in second for n in g}


def test_where_nothing_fails_nobody_is_named():
    verdict = replayed(names(8), 2, always([])).verdict()
    assert (verdict.named, verdict.suspects, verdict.reason) == ({}, (), "the fault did not come again")


def test_a_program_that_fails_everywhere_names_nobody():
    plan = replayed(names(8), 2, lambda group, phase: True)
    assert plan.phases == 1
    assert plan.verdict().named == {}
    assert "every group failed" in plan.verdict().reason


def test_a_fault_that_came_once_names_nobody_and_tells_who_was_there():
    plan = replayed(names(8), 2, lambda group, phase: phase == 0 and "n03" in group)
    verdict = plan.verdict()
    assert (verdict.named, verdict.suspects) == ({}, ["n02", "n03"])
    assert verdict.reason == "no node failed each time: 1 of 8 groups failed"


def test_where_a_third_of_the_nodes_fail_they_have_something_in_common():
    verdict = replayed(names(12), 2, always(names(12)[:4])).verdict()
    assert verdict.named == {}
    assert verdict.reason


def test_a_node_that_no_group_of_the_first_phases_had_is_tried_beside_good_ones():
    plan = replayed(names(7), 2, always(["n06"]))
    assert list(plan.verdict().named) == ["n06"]
    assert plan.phases == 4


@pytest.mark.parametrize(("nodes", "wanted", "size"), [(1, 0, 0), (2, 0, 1), (4, 0, 2), (8, 3, 0), (9, 3, 3)])
def test_how_many_train_together(nodes, wanted, size):
    assert group_size(nodes, wanted) == size
