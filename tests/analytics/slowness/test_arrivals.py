"""Who comes last to collectives, on the clocks of several nodes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness.arrivals import STEPS_NEEDED, arrivals_from

MS = 1_000_000


def table(
    seed=0, *, steps=30, ranks=4, per_node=2, late=None, late_ms=20.0, clock_ms=(0.0, 0.0), jitter_ms=1.0
):
    """The last all-reduce of each step. Rank `late` enqueues it later. Nodes' clocks differ by `clock_ms`."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        start = step * 200 + 100 + rng.normal(0, jitter_ms, ranks)
        if late is not None:
            start[late] += late_ms
        end = start.max() + 5 + rng.exponential(0.05, ranks)
        for rank in range(ranks):
            shift = clock_ms[rank // per_node]
            rows.append(
                {
                    "step": step,
                    "group": "dp:1",
                    "seq": 7 * step + 6,
                    "rank": rank,
                    "node": f"n{rank // per_node}",
                    "start_ns": int((start[rank] + shift) * MS) + 1_700_000_000_000_000_000,
                    "end_ns": int((end[rank] + shift) * MS) + 1_700_000_000_000_000_000,
                }
            )
    return pa.Table.from_pylist(rows)


@given(st.integers(0, 10**6), st.integers(0, 3), st.floats(-500, 500))
def test_the_rank_that_comes_last_is_seen_whatever_the_nodes_clocks_say(seed, late, clock_ms):
    arrivals = arrivals_from(table(seed, late=late, clock_ms=(0.0, clock_ms)))
    latest = arrivals.latest()
    assert latest.ranks == (late,)
    assert latest.last_ratio > 0.9
    assert latest.lateness_ns == pytest.approx(20 * MS, abs=2 * MS)
    assert latest.error_ns < MS


@given(st.integers(0, 10**6), st.floats(-500, 500))
def test_nobody_comes_last_again_and_again_in_a_sound_job(seed, clock_ms):
    assert arrivals_from(table(seed, clock_ms=(0.0, clock_ms))).latest().last_ratio < 0.7


def test_a_lateness_within_the_error_of_the_clocks_is_none():
    rows = table(1, late=3, late_ms=0.01, jitter_ms=0.0)
    arrival = arrivals_from(rows).of([3])
    assert arrival.error_ns > 10_000
    assert arrival.last_ratio < 0.5


def test_the_order_of_rows_changes_nothing():
    rows = table(2, late=1)
    mixed = rows.take(pa.array(np.random.default_rng(0).permutation(rows.num_rows)))
    assert arrivals_from(mixed).latest() == arrivals_from(rows).latest()


def test_a_longer_delay_is_never_milder():
    delays = [arrivals_from(table(3, late=2, late_ms=ms)).of([2]).lateness_ns for ms in (5, 10, 40)]
    assert delays == sorted(delays)


def test_collectives_that_lack_a_member_or_are_of_two_are_left_out():
    rows = table(4, late=0)
    rank, step = (rows.column(name).to_numpy() for name in ("rank", "step"))
    partial = rows.filter(pa.array((rank != 2) | (step >= STEPS_NEEDED - 1)))
    assert np.isnan(arrivals_from(partial).lateness_ns[: STEPS_NEEDED - 1]).all()
    two = arrivals_from(table(4, ranks=2, per_node=1))
    assert two.latest() is None
    assert arrivals_from(rows.slice(0, 0)) is None


def test_a_row_that_came_twice_leaves_its_collective_out():
    rows = table(5, late=0)
    twice = arrivals_from(pa.concat_tables([rows, rows.slice(0, 1)]))
    assert np.isnan(twice.lateness_ns[0]).all()
    assert twice.latest().ranks == (0,)


def test_a_node_whose_clock_cannot_be_compared_gives_no_answer():
    assert arrivals_from(table(6, steps=5, late=3)).latest() is None
