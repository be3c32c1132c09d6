"""Ranks and nodes that stand out in one window."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.cohort import Excess
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.suspects import (
    Suspect,
    find_suspects,
    hidden_by_noise,
    quiet_floor,
    strongest,
    table_of,
)
from tests.analytics.fleet import fleet, timings

JOB = timings(fleet(ranks=8, per_node=2))
CONFIG = StragglerConfig()
SIGMAS = 4.0


def table(excess, *, error=0.01, noise=0.02, recent=None, noisy=False, gap=None, steps=30):
    values = np.array(excess, float)
    cohort = Excess(
        columns=np.arange(8),
        rows=np.arange(steps),
        excess=values,
        error=np.full(8, error),
        noise=noise,
        recent=values if recent is None else np.array(recent, float),
        noisy=noisy,
        quartile_gap=gap,
    )
    return table_of(JOB, [cohort], CONFIG)


def one(size, at=3):
    return [size if rank == at else 0.0 for rank in range(8)]


def named(rank_table):
    return [(s.subject_type, s.subject) for s in find_suspects(rank_table, SIGMAS, CONFIG)]


def test_a_rank_far_above_noise_and_floor_is_a_suspect():
    (suspect,) = find_suspects(table(one(0.2)), SIGMAS, CONFIG)
    assert (suspect.subject_type, suspect.subject) == ("rank", "3")
    assert suspect.ratio == pytest.approx(np.expm1(0.2))
    assert suspect.margin == pytest.approx(20)


def test_within_noise_below_the_floor_or_over_by_now_nobody_is():
    assert named(table(one(0.03), error=0.01)) == []
    assert named(table(one(0.01), error=0.0001)) == []
    assert named(table(one(0.2), recent=one(0.0))) == []


def test_ranks_of_a_node_that_are_alike_are_the_node():
    both = [0.2 if rank in (2, 3) else 0.0 for rank in range(8)]
    assert named(table(both)) == [("node", "n1")]
    unlike = one(0.2)
    unlike[2] = 0.06
    assert ("node", "n1") not in named(table(unlike))
    assert ("rank", "3") in named(table(unlike))


def test_on_a_noisy_host_quick_steps_must_be_slow_too():
    gap = np.full(8, -0.1)
    assert named(table(one(0.5), noisy=True, gap=gap)) == []
    gap[3] = 0.1
    assert named(table(one(0.5), noisy=True, gap=gap)) == [("rank", "3")]


def test_on_a_noisy_host_one_rank_needs_more_than_a_node_and_a_short_window_never_suffices():
    gap = np.full(8, 0.1)
    just = one(0.5)
    assert named(table(just, error=0.1, noisy=True, gap=gap)) == []
    both = [0.5 if rank in (2, 3) else 0.0 for rank in range(8)]
    assert named(table(both, error=0.1, noisy=True, gap=gap)) == [("node", "n1")]
    assert named(table(one(2.0), noisy=True, gap=gap, steps=10)) == []


def test_where_steps_scatter_the_rank_that_stands_out_most_is_told_also_above_its_floor():
    excess = [0.3 if rank == 2 else 0.1 if rank == 7 else 0.0 for rank in range(8)]
    gap = np.full(8, 0.1)
    windows = [table(excess, noisy=True, gap=gap, steps=10), table(one(0.08, at=5), noisy=True, gap=gap)]
    assert named(windows[0]) == []
    assert "rank 2 computes 35% longer" in hidden_by_noise(windows, SIGMAS)
    assert hidden_by_noise([table(excess)], SIGMAS) == ""


def test_a_short_window_needs_a_plain_slowdown():
    assert quiet_floor(0.0, 10, CONFIG) == pytest.approx(np.log1p(CONFIG.short_floor))
    assert quiet_floor(0.0, 30, CONFIG) == pytest.approx(np.log1p(CONFIG.floor_ratio))
    assert quiet_floor(0.2, 30, CONFIG) == pytest.approx(0.3 * 0.2)


def suspect(subject, columns, excess, error=0.01, subject_type="rank"):
    return Suspect(
        subject_type=subject_type,
        subject=subject,
        columns=np.array(columns),
        rows=np.arange(10),
        excess=excess,
        error=error,
        noise=0.01,
    )


def test_each_subject_is_named_once_by_its_surest_window():
    kept = strongest([suspect("3", [3], 0.2), suspect("3", [3], 0.3), suspect("5", [5], 0.25)])
    assert [(s.subject, s.excess) for s in kept] == [("3", 0.3), ("5", 0.25)]


@pytest.mark.parametrize(("rank_excess", "expected"), [(0.2, "n1"), (0.9, "3")])
def test_of_a_node_and_its_rank_the_surer_is_kept(rank_excess, expected):
    node = suspect("n1", [2, 3], 0.4, subject_type="node")
    assert [s.subject for s in strongest([node, suspect("3", [3], rank_excess)])] == [expected]
