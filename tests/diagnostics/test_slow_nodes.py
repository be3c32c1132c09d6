"""Slow nodes are found by rounds with changing partners, and healthy ones are left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics.rounds import GroupResult
from pulsetrain.diagnostics.slow_nodes import (
    SHIFTS,
    SlowSearch,
    SlowTest,
    _evidence_of_ranks,
    deviations_limit,
)

EVERYTHING = ("compute", "compute_mean", "gather")


def names(count):
    return [f"n{i:02d}" for i in range(count)]


class Fleet:
    """Nodes whose times vary by `noise` from round to round. `slow` maps nodes to factors."""

    def __init__(self, nodes, slow=None, *, measures=EVERYTHING, noise=0.05, seed=0, usual=None):
        self.nodes, self.noise, self.seed = nodes, noise, seed
        self.index = {node: i for i, node in enumerate(nodes)}
        self.slow = {m: (slow or {}) if m in measures else {} for m in EVERYTHING}
        self.usual = usual or dict.fromkeys(nodes, 1.0)
        self.number = 0

    def answer(self, groups):
        generator = np.random.default_rng([self.seed, self.number])
        noise = np.exp(self.noise * generator.standard_normal((3, len(self.nodes))))
        factors = dict(zip(EVERYTHING, noise, strict=True))
        self.number += 1

        def time(node, measure):
            usual = self.slow[measure].get(node, 1.0) * self.usual[node]
            return float(usual * factors[measure][self.index[node]])

        return [
            GroupResult(
                members=group,
                ok=True,
                seconds=max(time(n, "gather") for n in group),
                own_times_s={n: {m: time(n, m) for m in ("compute", "compute_mean")} for n in group},
            )
            for group in groups
        ]

    def search(self, kinds=None, **test):
        search = SlowSearch(kinds or dict.fromkeys(self.nodes, ""), test=SlowTest(**test))
        while groups := search.next_round():
            members = [n for g in groups for n in g]
            assert len(members) == len(set(members))
            assert all(len(g) >= 2 for g in groups)
            search.take(self.answer(groups))
        return search.verdict()


@pytest.mark.parametrize("measures", [EVERYTHING, ("compute",), ("compute_mean",), ("gather",)])
def test_slow_nodes_are_named_with_what_they_are_slow_at(measures):
    slow = {"n03": 1.2, "n40": 1.5, "n41": 1.9}
    verdict = Fleet(names(64), slow, measures=measures).search()
    assert set(verdict.slow) == set(slow)
    assert verdict.reason == ""
    for node, factor in slow.items():
        assert verdict.slow[node].ratio == pytest.approx(factor, rel=0.06)
        assert verdict.slow[node].measure in measures


@given(st.integers(3, 40), st.integers(0, 2**32))
@settings(max_examples=12)
def test_nobody_is_named_where_all_are_healthy(count, seed):
    assert Fleet(names(count), seed=seed, noise=0.1).search().slow == {}


@given(st.permutations(names(16)))
@settings(max_examples=5)
def test_renaming_nodes_renames_the_answer(renamed):
    nodes = names(16)
    one = Fleet(nodes, {nodes[5]: 1.6}, seed=7).search()
    other = Fleet(list(renamed), {renamed[5]: 1.6}, seed=7).search()
    assert set(one.slow) == {nodes[5]}
    assert {nodes[renamed.index(n)]: found for n, found in other.slow.items()} == one.slow


@given(st.floats(1.2, 3.0), st.floats(1.05, 3.0), st.integers(0, 2**32))
@settings(max_examples=8)
def test_a_slower_node_is_never_milder(factor, worse, seed):
    nodes = names(24)
    mild, bad = (Fleet(nodes, {"n07": f}, seed=seed).search() for f in (factor, factor * worse))
    assert set(bad.slow) >= set(mild.slow)
    assert "n07" not in mild.slow or bad.slow["n07"].ratio > mild.slow["n07"].ratio


def test_a_machine_of_another_kind_is_not_slow():
    nodes = names(24)
    old = set(nodes[::3])
    usual = {n: 1.7 if n in old else 1.0 for n in nodes}
    kinds = {n: "old" if n in old else "new" for n in nodes}
    assert Fleet(nodes, usual=usual).search(kinds).slow == {}
    verdict = Fleet(nodes, {"n03": 1.5, "n04": 1.5}, usual=usual).search(kinds)
    assert set(verdict.slow) == {"n03", "n04"}


def test_too_few_of_a_kind_are_not_compared_and_that_is_told():
    nodes = names(8)
    kinds = {n: "H100" if i < 6 else "A100" for i, n in enumerate(nodes)}
    verdict = Fleet(nodes).search(kinds)
    assert set(verdict.not_compared) == {"n06", "n07"}
    assert "2 nodes of kind A100" in verdict.reason


def test_a_small_difference_that_healthy_nodes_have_is_not_slow():
    nodes = names(32)
    usual = {n: 1.0 + 0.03 * (i % 2) for i, n in enumerate(nodes)}
    assert Fleet(nodes, usual=usual, noise=0.01).search().slow == {}


def test_where_the_rounds_end_too_early_it_says_who_is_not_decided():
    fleet = Fleet(names(16), {"n02": 1.5})
    verdict = fleet.search(most_rounds=3)
    assert (verdict.slow, verdict.rounds) == ({}, 3)
    assert verdict.undecided["n02"] == pytest.approx(1.5, rel=0.1)
    assert "n02" in verdict.reason


def test_without_any_time_nobody_is_named_or_cleared():
    search = SlowSearch(dict.fromkeys(names(6), ""), test=SlowTest(most_rounds=10))
    while groups := search.next_round():
        search.take([GroupResult(members=g, ok=False, seconds=5.0) for g in groups])
    assert (search.verdict().slow, len(search.verdict().undecided)) == ({}, 6)


def test_who_is_left_out_is_in_no_group():
    search = SlowSearch(dict.fromkeys(names(9), ""))
    search.leave_out(["n04", "elsewhere"])
    assert sorted(n for g in search.next_round() for n in g) == [n for n in names(9) if n != "n04"]


def test_only_suspects_and_some_partners_cost_further_rounds():
    fleet = Fleet(names(300), {"n07": 1.2}, noise=0.08)
    search = SlowSearch(dict.fromkeys(fleet.nodes, ""))
    sizes = []
    while groups := search.next_round():
        sizes.append(sum(map(len, groups)))
        search.take(fleet.answer(groups))
    assert sizes[0] == 300
    assert sizes[-1] <= 70
    assert set(search.verdict().slow) == {"n07"}


@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_a_rank_by_chance_adds_no_evidence_on_average(count):
    """A mean of 1 over equally likely ranks is what bounds the error rate."""
    weights = np.exp(_evidence_of_ranks(count))
    assert weights.shape == (count, len(SHIFTS))
    assert weights.mean(axis=0) == pytest.approx(1.0)
    assert (np.diff(weights, axis=0) > 0).all()


@pytest.mark.parametrize("count", [8, 16, 64])
def test_the_largest_of_a_healthy_cohort_is_rarely_beyond_the_limit(count):
    scores = np.random.default_rng(0).standard_normal((20_000, count))
    middle = np.median(scores, axis=1, keepdims=True)
    spread = 1.4826 * np.median(abs(scores - middle), axis=1)
    beyond = (scores - middle).max(axis=1) > deviations_limit(count) * spread
    assert beyond.mean() < 0.0015


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, math.nan])
def test_an_error_rate_that_is_none_is_bad_usage(rate):
    with pytest.raises(UsageError, match="error_rate"):
        SlowTest(error_rate=rate)
