"""The heatmap's grid: order, what is missing, what stands out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.heatmap import figure, grid, natural, selected


def cell(row, col, ratio=1.0, rank=0, category="compute", usual=100, rows_in_all=2):
    return {
        "row": row, "col": col, "phase": col, "category": category, "ratio": ratio,
        "value_ns": ratio * usual,
        "usual_ns": usual,
        "rank": rank, "node": f"node of {rank}", "cohort": 4, "rows_in_all": rows_in_all,
    }  # fmt: skip


CELLS = [
    cell("node-10", "forward", usual=100),
    cell("node-2", "backward", 1.6, rank=5, usual=200),
    cell("node-2", "forward", 0.98, rank=4, usual=100),
    cell("node-2", "all_reduce", 0.7, category="communication", usual=900),
]


def test_rows_count_like_people_and_columns_follow_the_work():
    shown = grid(CELLS)
    assert shown.rows == ("node-2", "node-10")
    assert shown.columns == ("backward", "forward", "all_reduce")


def test_what_is_missing_is_none_and_not_zero():
    shown = grid(CELLS)
    assert shown.ratio[1] == (None, 1.0, None)
    assert shown.rank[1] == (-1, 0, -1)
    assert "no data" in shown.hover[1][0]


@given(st.permutations(CELLS))
def test_the_order_of_cells_changes_nothing(cells):
    assert grid(cells) == grid(CELLS)


def test_what_stands_out_is_named():
    assert "rank 5 on node of 5, backward, at 1.60x" in grid(CELLS).worst
    assert "Nothing here differs" in grid([cell("a", "forward", 1.05)]).worst
    assert grid([]).worst == "No data in these steps."


def test_a_worse_cell_is_never_milder():
    worse = [*CELLS, cell("node-3", "backward", 1.7, rank=9, usual=200)]
    assert "rank 9" in grid(worse).worst


def test_a_trifle_many_times_slower_is_not_what_stands_out():
    trifle = [*CELLS, cell("node-3", "data", 9.0, rank=9, usual=1)]
    assert "rank 5" in grid(trifle).worst


def test_waiting_is_not_what_stands_out_while_work_does():
    waiting = [*CELLS, cell("node-3", "recv", 5.0, rank=9, category="communication", usual=5000)]
    assert "rank 5" in grid(waiting).worst
    assert "rank 9" in grid(waiting[-1:]).worst


def test_find_keeps_matching_rows_and_left_out_counts_what_sql_cut():
    assert grid(CELLS, find="NODE-1").rows == ("node-10",)
    assert grid([cell("a", "forward", rows_in_all=12_288)]).left_out == 12_287


def test_step_windows_are_in_order_of_steps():
    assert grid([cell("0", "100"), cell("0", "20"), cell("0", "3")]).columns == ("3", "20", "100")


@settings(deadline=None)  # the first figure loads Plotly
@given(st.floats(min_value=1e-6, max_value=1e6))
def test_colours_are_clipped(ratio):
    chart = figure(grid([cell("a", "forward", ratio)]), LIGHT, columns_title="")
    assert -1.0 <= chart.data[1].z[0][0] <= 1.0


def test_missing_cells_have_a_colour_of_their_own():
    chart = figure(grid(CELLS), LIGHT, columns_title="")
    missing, shown = chart.data[0], chart.data[1]
    for blank, drawn in zip(missing.z, shown.z, strict=True):
        assert all((b is None) != (d is None) for b, d in zip(blank, drawn, strict=True))
    assert missing.colorscale[0][1] == LIGHT.missing


@pytest.mark.parametrize(
    ("points", "rank"),
    [
        ([{"x": "backward", "y": "node-2"}], 5),
        ([{"x": "backward", "y": "node-10"}], -1),
        ([{"x": "gone", "y": "node-2"}], -1),
        ([], -1),
    ],
)
def test_a_click_means_the_rank_behind_the_cell(points, rank):
    assert selected(grid(CELLS), points) == (rank, -1)


def test_a_click_in_a_step_window_means_its_steps():
    shown = grid([cell("3", "120", rank=3)])
    assert selected(shown, [{"x": "120", "y": "3"}]) == (3, 120)


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_natural_order_is_numeric(numbers):
    names = [f"n{number}" for number in numbers]
    assert sorted(names, key=natural) == [f"n{number}" for number in sorted(numbers)]
