"""The ranks and nodes that take longest now."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import slowest as module
from pulsetrain.analytics.slowness.slowest import STEPS, slowest
from pulsetrain.analytics.slowness.timings import from_matrices
from tests.analytics.fleet import fleet, timings


def test_a_slow_rank_comes_first_with_its_node_stage_and_excess():
    answer = slowest(timings(fleet(ranks=16, stages=2, slow={11: 1.5})))
    assert (answer["steps"], answer["last_step"]) == (STEPS, 59)
    first = answer["ranks"][0]
    assert (first["rank"], first["node"], first["stage"]) == (11, "n5", 1)
    assert first["slower_ratio"] == pytest.approx(0.5, abs=0.05)
    assert first["compute_s"] == pytest.approx(0.36, rel=0.1)
    assert answer["ranks"][1]["slower_ratio"] < 0.1


def test_a_slow_node_comes_first_among_nodes():
    answer = slowest(timings(fleet(ranks=16, per_node=4, slow=dict.fromkeys(range(4, 8), 1.3))))
    assert (answer["nodes"][0]["node"], answer["nodes"][0]["ranks"]) == ("n1", 4)
    assert answer["nodes"][0]["slower_ratio"] == pytest.approx(0.3, abs=0.05)


def test_only_the_newest_steps_count():
    assert slowest(timings(fleet(slow={1: 2.0}, slow_until=20)))["ranks"][0]["slower_ratio"] < 0.1


def test_stages_are_compared_with_themselves():
    answer = slowest(timings(fleet(ranks=8, stages=2, stage_ratio={1: 3.0})))
    assert all(row["slower_ratio"] < 0.1 for row in answer["ranks"])


def test_a_rank_that_is_alone_in_its_stage_has_no_ratio_and_comes_last():
    compute = np.full((10, 3), 1e8)
    compute[:, 2] *= 9
    answer = slowest(from_matrices({"compute": compute}, stages=np.array([0, 0, 1])))
    assert [(row["rank"], row["slower_ratio"]) for row in answer["ranks"]] == [(0, 0.0), (1, 0.0), (2, None)]


def test_longer_steps_with_more_tokens_are_not_slower():
    tokens = np.tile([100.0, 200.0], (10, 2))
    answer = slowest(from_matrices({"compute": tokens * 1e6, "tokens": tokens}))
    assert {row["slower_ratio"] for row in answer["ranks"]} == {0.0}


@pytest.mark.parametrize("steps", [0, 4])
def test_without_a_compute_time_nothing_is_said(steps):
    assert slowest(from_matrices({"duration_ns": np.ones((steps, 2))})) is None


def test_a_rank_without_a_compute_time_is_left_out():
    compute = np.full((10, 3), 1e8)
    compute[:, 1] = np.nan
    assert [row["rank"] for row in slowest(from_matrices({"compute": compute}))["ranks"]] == [0, 2]


@settings(max_examples=20)
@given(st.permutations(range(6)))
def test_renaming_ranks_renames_the_answer(names):
    compute = np.outer(np.ones(10), 1e8 * (1 + np.arange(6) / 10))
    answer = slowest(from_matrices({"compute": compute}, ranks=np.array(names)))
    assert [row["rank"] for row in answer["ranks"]] == [names[i] for i in (5, 4, 3, 2, 1, 0)]


def test_the_example_is_true():
    assert doctest.testmod(module).failed == 0
