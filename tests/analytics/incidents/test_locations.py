"""Where the subject of a finding is."""

from __future__ import annotations

from itertools import product

import pytest

from pulsetrain.analytics.incidents.locations import (
    SCOPES,
    Location,
    Topology,
    location_of,
    location_of_finding,
)
from tests.analytics.incidents.findings import finding

TOPOLOGY = Topology(node_of={("j", 3): "a"}, switch_of={"a": "sw"})


def test_a_rank_is_on_the_node_of_its_job():
    assert location_of(subject_type="rank", subject="3", job="j", topology=TOPOLOGY).node == "a"
    assert location_of(subject_type="rank", subject="3", job="other", topology=TOPOLOGY).node == ""
    assert location_of(subject_type="rank", subject="x", job="j", topology=TOPOLOGY).node == ""


def test_what_the_evidence_says_wins():
    assert location_of(subject_type="rank", subject="3", job="j", node="b", topology=TOPOLOGY).node == "b"
    assert location_of_finding(finding(node="b"), TOPOLOGY).node == "b"
    assert location_of_finding(finding(), TOPOLOGY).switch == "sw"


def test_a_rank_that_was_moved_was_where_its_finding_saw_it():
    assert location_of_finding(finding(nodes=["b"]), TOPOLOGY).node == "b"
    assert location_of_finding(finding(nodes=["b", "c"]), TOPOLOGY).node == "a"
    assert location_of_finding(finding(nodes=[]), TOPOLOGY).node == "a"


@pytest.mark.parametrize(("kind", "subject"), [("link", "a/mlx5_0/1"), ("gpu", "a/GPU-5096"), ("node", "a")])
def test_a_part_of_a_node_names_it(kind, subject):
    found = location_of(subject_type=kind, subject=subject, topology=TOPOLOGY)
    assert (found.scope, found.node, found.switch) == (kind, "a", "sw")


def test_a_link_that_is_a_switch_is_a_switch():
    assert location_of(subject_type="link", subject="switch/sw") == Location(
        scope="switch", subject="switch/sw", switch="sw"
    )


@pytest.mark.parametrize(("outer", "inner"), list(product(SCOPES, SCOPES)))
def test_only_a_larger_scope_contains_a_smaller_one(outer, inner):
    first, second = (Location(scope=s, subject="x", node="a", switch="sw") for s in (outer, inner))
    assert first.contains(second) is (SCOPES.index(outer) < SCOPES.index(inner))


def test_unknown_nodes_contain_nothing():
    unknown = Location(scope="node", subject="", node="")
    assert not unknown.contains(Location(scope="rank", subject="3", node=""))


@pytest.mark.parametrize("scope", ["job", "group", "stage"])
def test_what_spans_nodes_has_no_place(scope):
    shared = Location(scope=scope, subject="x", node="a")
    rank = Location(scope="rank", subject="3", node="a")
    assert not shared.contains(rank)
    assert not rank.contains(shared)
