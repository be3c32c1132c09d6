"""Nodes that were hit alike: when they suspect their switch, and that chance seldom does."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.incidents.shared_switch import ALPHA, JobNodes, Sizes, chance_of_any, find


def fleet(switches=8, each=8):
    """Nodes n0, n1, ... in the order of their switches."""
    return {f"n{i}": f"s{i // each}" for i in range(switches * each)}


def job(switch_of, *hit):
    return JobNodes(switch_of=switch_of, hit=frozenset(hit))


def test_three_nodes_of_one_switch_suspect_it():
    found = find({"j": job(fleet(), "n24", "n27", "n30")})
    assert (found.switch, found.hit) == ("s3", {"j": ("n24", "n27", "n30")})
    assert (found.count, found.under, found.elsewhere, found.others) == (3, 8, 0, 7)
    assert found.chance == pytest.approx(8 * 56 / 41664)


def test_the_same_number_elsewhere_suspects_nobody():
    assert find({"j": job(fleet(), "n24", "n33", "n60")}) is None


def test_two_of_a_small_fleet_may_be_chance_and_two_of_a_large_one_seldom_are():
    assert find({"j": job(fleet(4, 2), "n0", "n1")}) is None
    assert find({"j": job(fleet(256, 4), "n0", "n1")}).switch == "s0"


def test_a_node_that_fails_elsewhere_meanwhile_changes_little_and_two_do():
    four = [f"n{i}" for i in range(24, 28)]
    assert find({"j": job(fleet(), *four, "n1")}).elsewhere == 1
    assert find({"j": job(fleet(), *four, "n1", "n9")}) is None


def test_a_whole_switch_of_two():
    assert find({"j": job(fleet(2, 4), "n0", "n1", "n2", "n3")}).chance == pytest.approx(2 / 70)
    assert find({"j": job(fleet(2, 4), "n0", "n1", "n2")}) is None  # 8 of 56 choices


def test_a_job_that_fails_by_itself_does_not_suspect_the_switch_of_its_nodes():
    mine = {f"n{i}": "s3" for i in range(8)}
    assert find({"j": job(mine, *mine)}) is None
    others = {f"m{i}": f"s{i}" for i in range(8)}
    assert find({"j": job(mine, *mine), "k": job(others, "m3")}) is None


def test_nodes_of_several_jobs_under_one_switch_count_together():
    jobs = {name: job({f"{name}{i}": f"s{i}" for i in range(4)}, f"{name}2") for name in "abcd"}
    found = find(jobs)  # each job has one node under each of four switches
    assert (found.switch, found.count, found.under) == ("s2", 4, 4)
    assert found.chance == pytest.approx(4 / 4**4)
    assert find({name: jobs[name] for name in "ab"}) is None


def test_nodes_without_a_known_switch_are_left_out():
    switch_of = {**fleet(), "x": "", "y": "", "z": ""}
    assert find({"j": job(switch_of, "x", "y", "z")}) is None
    assert find({"j": job(switch_of, "n24", "n27", "n30", "x")}).count == 3


@pytest.mark.parametrize("jobs", [{}, {"j": job({})}, {"j": job(fleet())}, {"j": job({}, "gone", "away")}])
def test_where_nobody_was_hit_nobody_is_suspected(jobs):
    assert find(jobs) is None


def test_the_chance_is_what_counting_all_choices_gives_for_two_switches():
    switch_of = fleet(2, 4)
    choices = list(itertools.combinations(switch_of, 5))
    for count in range(3, 6):
        hit = sum(
            max(sum(switch_of[n] == s for n in choice) for s in ("s0", "s1")) >= count for choice in choices
        )
        expected = hit / len(choices)
        assert chance_of_any([Sizes(under={"s0": 4, "s1": 4}, hit=5)], count) == pytest.approx(expected)


def test_nodes_that_are_hit_by_chance_suspect_a_switch_no_more_often_than_stated():
    chosen = random.Random(1)
    switch_of = fleet(16, 4)
    trials = 600
    wrong = sum(
        find({"j": job(switch_of, *chosen.sample(sorted(switch_of), chosen.randint(2, 6)))}) is not None
        for _ in range(trials)
    )
    assert wrong <= 1.5 * ALPHA * trials


sizes = st.lists(st.integers(1, 6), min_size=2, max_size=6)


@given(sizes, st.data())
def test_one_node_never_suspects_a_switch(under, data):
    switch_of = {f"s{i}n{k}": f"s{i}" for i, size in enumerate(under) for k in range(size)}
    assert find({"j": job(switch_of, data.draw(st.sampled_from(sorted(switch_of))))}) is None


@given(sizes, st.integers(1, 6))
def test_switches_that_are_hit_alike_are_not_suspected(under, hit):
    switch_of = {f"s{i}n{k}": f"s{i}" for i, size in enumerate(under) for k in range(size)}
    alike = [node for node in switch_of if int(node.split("n")[1]) < min(hit, *under)]
    assert find({"j": job(switch_of, *alike)}) is None


@given(sizes, st.data())
def test_names_and_order_do_not_matter_and_more_hit_nodes_are_never_likelier_by_chance(under, data):
    switch_of = {f"s{i}n{k}": f"s{i}" for i, size in enumerate(under) for k in range(size)}
    hit = data.draw(st.lists(st.sampled_from(sorted(switch_of)), unique=True))
    found = find({"j": job(switch_of, *hit)})
    renamed = {f"x{node}": f"y{switch}" for node, switch in reversed(switch_of.items())}
    again = find({"k": job(renamed, *(f"x{node}" for node in hit))})
    assert (again is None) == (found is None)
    if found is not None:
        assert again.chance == pytest.approx(found.chance)
        assert again.switch == f"y{found.switch}"
        assert found.count >= 2
        assert 0 < found.chance <= ALPHA
    sized = [Sizes(under={s: list(switch_of.values()).count(s) for s in switch_of.values()}, hit=len(hit))]
    chances = [chance_of_any(sized, count) for count in range(len(hit) + 2)]
    assert chances == sorted(chances, reverse=True)
