"""What every chart has in common."""

import re

import pytest

from pulsetrain.dashboard.models.charts import CATEGORY_COLOURS, DARK, LIGHT, STAGE_COLOURS, frame


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_frame_is_empty_and_in_the_colours_of_its_theme(theme):
    chart = frame(theme, height=300, barmode="stack")
    assert not chart.data
    assert (chart.layout.height, chart.layout.barmode) == (300, "stack")
    assert chart.layout.font.color == theme.text
    assert chart.layout.xaxis.gridcolor == chart.layout.yaxis.gridcolor == theme.grid


def test_zoom_and_camera_survive_a_refresh():
    first, second = frame(LIGHT, height=300), frame(LIGHT, height=300)
    assert first.layout.uirevision == second.layout.uirevision == "keep"


@pytest.mark.parametrize("colours", [CATEGORY_COLOURS, STAGE_COLOURS])
def test_no_two_categories_share_a_colour(colours):
    assert len(set(colours.values())) == len(colours)
    assert all(re.fullmatch(r"#[0-9A-F]{6}", colour) for colour in colours.values())
