"""What every chart has in common."""

import json
import re

import pytest

from pulsetrain.dashboard.models.charts import (
    CATEGORY_COLOURS,
    DARK,
    LIGHT,
    STAGE_COLOURS,
    axis,
    chart,
    mark_lines,
    zoom,
)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_charts_and_axes_are_in_the_colours_of_their_theme(theme):
    drawn = chart(theme, height=300, tooltip={"trigger": "axis"}, xAxis=axis(theme, "time", name="UTC"))
    assert drawn.height == 300
    assert drawn.option["textStyle"]["color"] == theme.text
    assert drawn.option["tooltip"]["trigger"] == "axis"
    assert drawn.option["tooltip"]["backgroundColor"] == theme.head
    assert drawn.option["xAxis"]["splitLine"]["lineStyle"]["color"] == theme.grid
    assert (drawn.option["xAxis"]["type"], drawn.option["xAxis"]["name"]) == ("time", "UTC")


def test_a_wheel_alone_scrolls_the_page():
    (inside,) = zoom(LIGHT)["dataZoom"]
    assert (inside["type"], inside["zoomOnMouseWheel"]) == ("inside", "shift")


def test_a_chart_is_plain_json():
    drawn = chart(LIGHT, height=300, series=[mark_lines([{"xAxis": 3}], xAxisIndex=1)], **zoom(LIGHT))
    assert json.loads(json.dumps(drawn.option)) == drawn.option
    assert drawn.option["series"][0]["xAxisIndex"] == 1


@pytest.mark.parametrize("colours", [CATEGORY_COLOURS, STAGE_COLOURS])
def test_no_two_categories_share_a_colour(colours):
    assert len(set(colours.values())) == len(colours)
    assert all(re.fullmatch(r"#[0-9A-F]{6}", colour) for colour in colours.values())
