"""The page Heatmap."""

import pytest

CELL = {
    "row": "node-2", "col": "backward", "category": "compute", "phase": "backward", "rank": 5,
    "node": "node-<2>", "ratio": 1.5, "cohort": 4, "rows_in_all": 1, "value_ns": 165_000_000,
    "usual_ns": 110_000_000,
}  # fmt: skip


@pytest.fixture
def cells(source):
    source.stored |= {
        "jobs": [{"job": "gpt", "ranks": 8, "first_step": 0, "last_step": 119, "attempts": 1, "last_ns": 1}],
        "heat_by_phase": [CELL],
        "heat_by_step": [{**CELL, "col": "100"}],
    }
    return source


def test_what_stands_out_is_a_sentence_above_the_chart(draw, cells):
    shown = draw("heatmap")
    assert "rank 5 on node-<2>, backward, at 1.50x the median" in shown.text
    assert "Steps 100 to 119" in shown.text
    assert len(shown.app.get("plotly_chart")) == 1


def test_a_phase_is_shown_over_step_windows(draw, cells):
    shown = draw("heatmap", phase="backward")
    assert "backward from step 100" in shown.text


def test_steps_that_cannot_be_read_are_one_sentence(draw, cells):
    shown = draw("heatmap", range="x:y")
    assert "x:y" in shown.app.warning[0].value
    assert not shown.app.get("plotly_chart")


def test_no_cell_and_no_step_are_said(draw, cells):
    assert "No data: no span of phase nosuch" in draw("heatmap", phase="nosuch", find="zzz").text
    cells.stored["jobs"] = []
    assert "No data: no step of this job" in draw("heatmap").text
