"""The heatmap's grid: rows, what is pinned, what is named, what a click opens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard.models.attribution import Accused
from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.heatmap import grid, grid_chart, in_words, selected, spans_of
from pulsetrain.dashboard.models.text import natural

MS = 1_000_000


def bin_(place, col, value=100, usual=100, *, rank=None, category="compute", suspects=(), items=1):
    first = place * 8
    return {
        "bin": place, "col": col, "phase": col, "category": category, "first_item": first,
        "last_item": first + 8 * (items - 1), "first_node": f"node-{place}", "last_node": f"node-{place}",
        "items": items, "ranks": 8 * items, "first_rank": first, "last_rank": first + 8 * items - 1,
        "value_ns": value * MS, "usual_ns": usual * MS, "rank": first if rank is None else rank, "cohort": 64,
        "node": f"node-{place}",
        "suspects": [
            {"1": most, "2": rank, "3": value * MS, "4": usual * MS, "5": 64, "6": f"node-{place}"}
            for most, rank in suspects
        ],
    }  # fmt: skip


SLOW = ((60, 19),)
CELLS = [
    bin_(2, "forward", 130, suspects=SLOW, rank=19),
    bin_(2, "backward", 260, 200, suspects=SLOW, rank=19),
    bin_(2, "all_reduce", 300, 900, category="communication", suspects=SLOW),
    bin_(10, "forward"),
    bin_(10, "backward", 201, 200),
    bin_(10, "all_reduce", 950, 900, category="communication"),
    bin_(3, "forward", 99),
]


def test_rows_keep_the_order_of_the_fleet_and_columns_that_of_the_work():
    shown = grid(CELLS, by="node")
    assert [row.name for row in shown.rows] == ["◆ rank 19", "node-2", "node-3", "node-10"]
    assert shown.columns == ("backward", "forward", "all_reduce")


def test_who_stands_out_is_on_top_and_named_and_nobody_else_is():
    shown = grid(CELLS, by="node")
    assert [row.name for row in shown.rows if row.pinned] == ["◆ rank 19"]
    assert shown.culprit == 19
    assert "Rank 19 on node-2 loses most: backward takes 260 ms a step, 1.30x its cohort" in shown.worst
    assert "more row" not in shown.worst


def test_ranks_of_a_node_that_stand_out_together_are_one_row():
    cells = [bin_(4, "forward", 140, suspects=[(40, 32 + i) for i in range(4)])]
    (pinned, row) = grid(cells, by="node").rows
    assert pinned.name == "◆ node-4: 4 ranks"
    assert pinned.opens == {"by": "rank", "within": "rank=32:35"}
    assert not row.pinned


def test_a_trifle_many_times_slower_does_not_outshine_the_fault():
    shown = grid([*CELLS, bin_(3, "data", 2, 1)], by="node")
    by_name = {row.name: dict(zip(shown.columns, row.cells, strict=True)) for row in shown.rows}
    assert by_name["node-3"]["data"].share < 0.1 * by_name["node-2"]["backward"].share


def test_work_costs_the_job_and_waiting_is_another_colour():
    shown = grid(CELLS, by="node")
    last = shown.rows[-1].cells
    assert last[0].share > 0
    assert last[2].share < 0
    assert dict(zip(shown.columns, shown.rows[2].cells, strict=True))["forward"].share == 0


def test_without_an_outlier_nobody_is_named():
    shown = grid([bin_(0, "forward", 101), bin_(1, "forward", 99)], by="node")
    assert "No rank works longer" in shown.worst
    assert shown.culprit == -1
    assert grid([], by="node").worst == "No data in these steps."


@given(st.permutations(CELLS))
def test_the_order_of_cells_changes_nothing(cells):
    assert grid(cells, by="node") == grid(CELLS, by="node")


def test_what_is_missing_has_no_cell():
    assert grid(CELLS, by="node").rows[2].cells == (None, grid(CELLS, by="node").rows[2].cells[1], None)


@pytest.mark.parametrize(
    ("by", "items", "within", "opens"),
    [
        ("job", 1, "", {"by": "stage", "within": ""}),
        ("stage", 1, "", {"by": "dp", "within": "stage=16"}),
        ("dp", 3, "stage=3", {"by": "dp", "within": "stage=3,dp=16:32"}),
        ("node", 1, "", {"by": "rank", "within": "rank=16:23"}),
        ("node", 3, "", {"by": "node", "within": "rank=16:39"}),
    ],
)
def test_a_row_opens_what_lies_below_it(by, items, within, opens):
    (row,) = grid([bin_(2, "forward", items=items)], by=by, within=within).rows
    assert row.opens == opens


def test_ranges_of_the_address():
    assert spans_of("stage=3,dp=8:15") == {"stages": (3, 3), "dps": (8, 15)}
    for bad in ("node=3", "rank", "rank=a:b", "rank=3:x"):
        with pytest.raises(UsageError, match="within"):
            spans_of(bad)


def test_step_windows_are_in_order_of_steps():
    assert grid([bin_(0, "100"), bin_(0, "20"), bin_(0, "3")], by="node").columns == ("3", "20", "100")


@settings(max_examples=8)
@given(st.integers(min_value=1, max_value=10**9))
def test_colours_stay_in_the_scale(value):
    drawn = grid_chart(grid([bin_(0, "forward", value)], by="node"), LIGHT, columns_title="")
    assert -1.0 <= drawn.option["series"][0]["data"][0][2] <= 1.0


def test_a_view_of_a_large_fleet_is_below_a_hundred_kilobytes():
    phases = [f"phase_{i}" for i in range(10)]
    cells = [
        bin_(place, phase, 103, items=24, suspects=((3, place),)) for place in range(64) for phase in phases
    ]
    drawn = grid_chart(grid(cells, by="node"), LIGHT, columns_title="")
    assert len(json.dumps(drawn.option)) < 100_000
    assert sum(len(axis["data"]) for axis in drawn.option["yAxis"]) <= 64 + 8


def test_a_click_means_the_rank_behind_the_cell():
    shown = grid(CELLS, by="node")
    chosen = selected(shown, clicked(shown, "forward", "◆ rank 19"))
    assert (chosen.cell.rank, chosen.row.rank, chosen.step) == (19, 19, -1)
    chosen = selected(shown, clicked(shown, "backward", "node-2"))
    assert (chosen.cell.phase, chosen.row.name) == ("backward", "node-2")
    assert selected(shown, [{"series_id": "part-0", "data_indices": [999]}]) is None
    assert selected(shown, []) is None
    by_step = grid([bin_(0, "120")], by="rank")
    assert selected(by_step, clicked(by_step, "120", by_step.rows[0].name)).step == 120


def clicked(shown, column, name):
    """What Streamlit reports of a click on the cell of a column and a row."""
    option = grid_chart(shown, LIGHT, columns_title="").option
    for series in option["series"]:
        names = option["yAxis"][series["yAxisIndex"]]["data"]
        if series["type"] == "heatmap" and name in names:
            at = [option["xAxis"][series["xAxisIndex"]]["data"].index(column), names.index(name)]
            places = [place for place, point in enumerate(series["data"]) if point[:2] == at]
            return [{"series_id": series["id"], "data_indices": places}]
    raise AssertionError(f"no row {name}")


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_natural_order_is_numeric(numbers):
    names = [f"n{number}" for number in numbers]
    assert sorted(names, key=natural) == [f"n{number}" for number in sorted(numbers)]


def test_who_is_accused_for_something_else_than_time_has_a_row_with_words():
    hung = Accused(subject_type="rank", subject="3", state="culprit", summary="Rank 3 is stopped <b>")
    slow = Accused(subject_type="rank", subject="19", state="slow", summary="Rank 19 computes slower")
    shown = grid(CELLS, by="node", named=[hung, slow])
    assert [row.name for row in shown.rows][:2] == ["◆ rank 3", "◆ rank 19"]
    drawn = grid_chart(shown, LIGHT, columns_title="")
    band, mark = [series for series in drawn.option["series"] if series["type"] == "bar"]
    assert [note["label"]["formatter"] for note in band["data"]] == ["Rank 3 is stopped <b>"]
    assert [note["itemStyle"]["color"] for note in (*band["data"], *mark["data"])] == ["#D55E002e", "#D55E00"]
    assert drawn.option["yAxis"][band["yAxisIndex"]]["data"][band["data"][0]["value"][1]] == "◆ rank 3"


def test_each_row_has_words_for_the_cell_that_costs_most():
    accused = Accused(subject_type="node", subject="node-9", state="culprit", summary="It is hot.")
    notes, pinned, first, *_ = in_words(grid(CELLS, by="node", named=[accused]))
    assert notes[1:] == (None, "It is hot.")
    assert pinned[2].startswith("backward of rank 19 on node-2 takes 260 ms a step, 1.3x the median of 64")
    assert pinned[2].endswith("% of the step")
    assert (first[0].name, first[1].cell.phase, first[1].step) == ("node-2", "backward", -1)


def test_words_about_step_windows_lead_to_their_step():
    ((_, chosen, _),) = in_words(grid([bin_(2, "40"), bin_(2, "60", 130)], by="node"))
    assert chosen.step == 60
