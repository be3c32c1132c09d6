"""Whether one finding can be the cause of another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.incidents.causality import Symptom, causes, explains, symptom_of
from pulsetrain.analytics.incidents.locations import Location

NODE = Location(scope="node", subject="a", node="a", switch="sw")
RANK = Location(scope="rank", subject="3", node="a", switch="sw")
JOB = Location(scope="job", subject="j")
GROUP = Location(scope="group", subject="dp:8")


def symptom(kind, location, *, mild=False, **evidence):
    return symptom_of([(kind, evidence)], location, mild=mild)


def test_every_row_of_the_table_explains_only_kinds_that_it_knows_and_fills_in_its_action():
    for cause in causes().values():
        assert set(cause.explains) <= set(causes()) | {"no_progress"}
        assert cause.action.format(subject="rank 1", node="n0")


def test_a_cause_needs_a_kind_that_explains_the_effects():
    assert explains(symptom("gpu_fault", NODE), symptom("crash", RANK))
    assert not explains(symptom("crash", NODE), symptom("gpu_fault", RANK))


def test_what_contains_the_cause_is_not_explained_by_it():
    assert not explains(symptom("straggler", RANK), symptom("fail_slow", NODE))
    assert explains(symptom("straggler", NODE), symptom("fail_slow", RANK))


@pytest.mark.parametrize(("ratio", "enough"), [(1.05, False), (1.15, True), (1.5, True)])
def test_a_cause_has_at_least_half_of_the_effects_slowdown(ratio, enough):
    effect = symptom("fail_slow", JOB, slow_ratio=1.3)
    assert explains(symptom("straggler", RANK, ratio=ratio), effect) is enough


def test_a_rank_that_works_slowly_is_slow_by_something_on_its_own_node():
    elsewhere = Location(scope="rank", subject="9", node="b", switch="sw")
    link = Location(scope="link", subject="a/mlx5_0/1", node="a", switch="sw")
    switch = Location(scope="switch", subject="sw", switch="sw")
    assert explains(symptom("link_flap", link), symptom("straggler", RANK))
    assert not explains(symptom("link_flap", link), symptom("straggler", elsewhere))
    assert explains(symptom("link_flap", link), symptom("hang", elsewhere))
    assert explains(symptom("switch_fault", switch), symptom("straggler", elsewhere))
    both = symptom_of([("straggler", {}), ("fail_slow", {})], elsewhere, mild=False)
    assert explains(symptom("link_flap", link), both)


def test_an_unknown_slowdown_excludes_nothing():
    assert explains(symptom("straggler", RANK), symptom("fail_slow", JOB, slow_ratio=3.0))
    assert explains(symptom("straggler", RANK, ratio=1.01), symptom("fail_slow", JOB))


@pytest.mark.parametrize(
    ("members", "explained"),
    [({"ranks": [3, 11]}, True), ({"nodes": ["a"]}, True), ({"ranks": [4]}, False), ({}, True)],
)
def test_a_group_needs_a_member_in_common_where_members_are_known(members, explained):
    assert explains(symptom("straggler", RANK), symptom("slow_link", GROUP, **members)) is explained


def test_mere_information_explains_a_group_only_where_the_group_is_no_more():
    slow = symptom("straggler", RANK, mild=True)
    assert not explains(slow, symptom("slow_link", GROUP, ranks=[3]))
    assert explains(slow, symptom("slow_link", GROUP, ranks=[3], mild=True))


def test_the_whole_job_is_no_cause_of_a_group():
    assert not explains(symptom("fail_slow", JOB), symptom("slow_link", GROUP))


@pytest.mark.parametrize(
    ("kind", "evidence", "excess"),
    [
        ("straggler", {"ratio": 2.0}, math.log(2)),
        ("fail_slow", {"slow_ratio": 2.0}, math.log(2)),
        ("gc_pause", {"share": 0.5}, math.log(2)),
        ("data_stall", {"share": 0.0}, 0.0),
    ],
)
def test_slowdowns_of_all_kinds_are_on_one_scale(kind, evidence, excess):
    assert symptom(kind, RANK, **evidence).excess == pytest.approx(excess)


@pytest.mark.parametrize("ratio", [None, "2", float("nan"), float("inf"), 0.0, -1.0])
def test_a_ratio_of_no_sense_is_no_slowdown(ratio):
    assert math.isnan(symptom("straggler", RANK, ratio=ratio).excess)


def test_a_symptom_joins_what_all_findings_say():
    both = symptom_of(
        [("straggler", {"ratio": 1.5, "ranks": [3, "x"]}), ("gc_pause", {"share": 0.1, "nodes": ["b", ""]})],
        RANK,
        mild=False,
    )
    assert both.kinds == {"straggler", "gc_pause"}
    assert both.ranks == {3}
    assert both.nodes == {"a", "b"}
    assert both.excess == pytest.approx(math.log(1.5))


KINDS = st.sampled_from(sorted(causes()))


@given(KINDS, KINDS)
def test_a_rank_never_explains_its_node_whatever_the_kinds(a, b):
    inside = Symptom(kinds=frozenset({a}), location=RANK)
    outside = Symptom(kinds=frozenset({b}), location=NODE)
    assert not explains(inside, outside)
