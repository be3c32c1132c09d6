"""Pipeline stages from the transfers of jobs that name no mesh."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness.pipeline_order import SENDS, heard_first, stages


def transfers(begins):
    """The first transfer of each step of each rank: `begins` holds (phase, peer) by rank, oldest first."""
    rows = [
        {"step": step, "rank": rank, "phase": phase, "peer": peer}
        for rank, steps in begins.items()
        for step, (phase, peer) in enumerate(steps)
    ]
    return pa.Table.from_pylist(rows)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.randoms())
def test_every_rank_of_a_grid_gets_its_stage(replicas, depth, width, draw):
    numbers = list(range(replicas * depth * width))
    draw.shuffle(numbers)
    grid = {
        (r, s, t): numbers[(r * depth + s) * width + t]
        for r in range(replicas)
        for s in range(depth)
        for t in range(width)
    }
    heard = {rank: grid[r, s - 1, t] if s else SENDS for (r, s, t), rank in grid.items()}
    assert stages(heard, numbers) == {rank: s for (_, s, _), rank in sorted(grid.items(), key=lambda i: i[1])}


@given(st.integers(2, 6))
def test_a_ring_is_one_stage(size):
    assert set(stages({r: (r - 1) % size for r in range(size)}, range(size)).values()) == {0}


def test_a_stage_behind_a_ring_comes_after_it():
    assert stages({0: 1, 1: 0, 2: 0, 3: 2}, range(4)) == {0: 0, 1: 0, 2: 1, 3: 2}


@given(st.dictionaries(st.integers(0, 6), st.integers(-1, 7), min_size=1))
def test_any_answer_covers_every_rank_and_no_answer_is_half(heard):
    found = stages(heard, heard.keys())
    if found is None:
        assert any(first != SENDS and first not in heard for first in heard.values())
    else:
        assert found.keys() == heard.keys()
        assert min(found.values()) == 0


def test_a_rank_that_was_not_heard_leaves_the_order_unknown():
    assert stages({0: SENDS, 1: 0}, range(3)) is None


def test_the_usual_step_counts():
    recv = [("recv", 0)] * 7
    heard = heard_first(transfers({0: [("send", 1)] * 8, 1: [*recv, ("send", 0)]}))
    assert heard == {0: SENDS, 1: 0}


def test_a_rank_that_begins_its_steps_differently_is_not_known():
    assert heard_first(transfers({1: [("recv", 0), ("send", 0)] * 4, 2: [("recv", 0)]})) == {}
