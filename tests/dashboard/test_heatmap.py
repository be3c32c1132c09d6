"""The page Heatmap."""

import pytest

from tests.dashboard.models.test_heatmap import SLOW, bin_


@pytest.fixture
def cells(source):
    source.stored |= {
        "jobs": [{"job": "gpt", "ranks": 8, "first_step": 0, "last_step": 119, "attempts": 1, "last_ns": 1}],
        "heat": [bin_(2, "forward", 130, suspects=SLOW, rank=19), bin_(3, "forward")],
    }
    return source


def test_what_stands_out_is_a_sentence_above_the_chart(draw, cells):
    shown = draw("heatmap")
    assert "Rank 19 on node-2 loses most: forward takes 130 ms a step" in shown.text
    assert "Steps 100 to 119" in shown.text
    assert len(shown.app.get("echarts_chart")) == 1


def test_a_table_leads_where_a_click_does(draw, cells):
    shown = draw("heatmap")
    assert [row[0] for row in shown.rows()] == ["◆ rank 19", "node-2", "node-3"]
    assert "forward of rank 19 on node-2 takes 130 ms a step, 1.3x the median of 64" in shown.rows()[0][1]
    assert 'href="timeline?job=gpt&amp;ranks=19&amp;steps=116%3A119"' in shown.html
    assert 'href="heatmap?job=gpt&amp;by=rank&amp;within=rank%3D16%3A23"' in shown.html


def test_a_mesh_that_nobody_knows_is_said(draw, cells):
    cells.answers["status"]["jobs"][0]["instrumentation"] = {"mesh": "unknown: ranks send to each other"}
    assert "mesh is not known: ranks send to each other" in draw("heatmap").text


@pytest.mark.parametrize(("name", "value"), [("range", "x:y"), ("within", "node=3")])
def test_what_cannot_be_read_is_one_sentence(draw, cells, name, value):
    shown = draw("heatmap", **{name: value})
    assert value in shown.app.warning[0].value
    assert not shown.app.get("echarts_chart")


def test_no_cell_and_no_step_are_said(draw, cells):
    cells.stored["heat"] = []
    assert "No data: no span of phase nosuch" in draw("heatmap", phase="nosuch").text
    cells.stored["jobs"] = []
    assert "No data: no step of this job" in draw("heatmap").text


def test_the_steps_that_began_in_the_chosen_time_unless_steps_are_given(draw, cells):
    cells.stored["steps_during"] = [{"first_step": 40, "last_step": 60, "newest_step": 60}]
    assert "Steps 40 to 60" in draw("heatmap", last="1 hour").text
    assert "Steps 1 to 5" in draw("heatmap", last="1 hour", range="1:5").text
    cells.stored["steps_during"] = []
    assert "no step of this job began in this time" in draw("heatmap", last="1 hour").text
