"""What every chart has in common: colours for light and dark, axes, and how people zoom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.core.json import JsonObject

_FONT = "Source Sans, sans-serif"
CATEGORY_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "#3B7DB8",
        "communication": "#E1A034",
        "data": "#5BA884",
        "checkpoint": "#B07AA1",
        "other": "#9AA0A8",
    }
)
STAGE_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "detect": "#D55E00",
        "diagnose": "#E69F00",
        "evict": "#A3195B",
        "rendezvous": "#0072B2",
        "load": "#56B4E9",
        "first_step": "#009E73",
    }
)


@dataclass(frozen=True, kw_only=True)
class Theme:
    """The colours of text, axes and background. Data colours are the same in light and dark."""

    dark: bool
    text: str
    muted: str
    grid: str
    paper: str
    missing: str
    head: str
    quicker: str
    slower: str
    calm: str


LIGHT = Theme(
    dark=False,
    text="#20242b",
    muted="#667080",
    grid="#e4e7eb",
    paper="#ffffff",
    missing="#c9cdd3",
    head="#f4f5f7",
    quicker="#2166AC",
    slower="#B2182B",
    calm="#F4F5F6",
)
DARK = Theme(
    dark=True,
    text="#e6e8eb",
    muted="#98a1ae",
    grid="#2d333c",
    paper="#14171c",
    missing="#4a515c",
    head="#1d2128",
    quicker="#5AA9E6",
    slower="#FF7A45",
    calm="#20252C",
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart in two dimensions: what ECharts calls its option, and its height in pixels."""

    option: JsonObject
    height: int


def chart(theme: Theme, *, height: int, **parts: object) -> Chart:
    """Return a chart of these parts of an option, in the common look. Times are UTC."""
    text = {"fontFamily": _FONT, "fontSize": 13, "color": theme.text}
    frame = {"confine": True, "backgroundColor": theme.head, "borderColor": theme.grid, "textStyle": text}
    parts["tooltip"] = frame | _part(parts.get("tooltip"))
    return Chart(option={"animation": False, "useUTC": True, "textStyle": text, **parts}, height=height)


def axis(theme: Theme, kind: str, **parts: object) -> dict[str, object]:
    """Return an axis of a kind of ECharts ("value", "time", "category")."""
    line = {"lineStyle": {"color": theme.grid}}
    name = {"nameLocation": "middle", "nameTextStyle": {"color": theme.muted, "fontSize": 12}}
    labels = {"color": theme.muted, "fontSize": 12, "hideOverlap": True} | _part(parts.pop("axisLabel", None))
    common = {"type": kind, "axisLine": line, "axisTick": line, "splitLine": line, **name}
    return {**common, "axisLabel": labels, **parts}


def zoom(theme: Theme) -> dict[str, object]:
    """The parts of an option by which people zoom: buttons that take a part of the x axis and give it back.

    With Shift the wheel zooms too. A wheel alone scrolls the page.
    """
    inside = {"type": "inside", "xAxisIndex": "all", "zoomOnMouseWheel": "shift", "filterMode": "none"}
    buttons = {
        "dataZoom": {"yAxisIndex": "none", "filterMode": "none", "title": {"zoom": "Zoom", "back": "Back"}},
        "restore": {"title": "All of it"},
    }
    tools = {
        "padding": 0,
        "itemSize": 13,
        "feature": buttons,
        "iconStyle": {"borderColor": theme.muted},
        "right": 40,
        "top": 0,
    }
    return {"dataZoom": [inside], "toolbox": tools}


def mark_lines(places: Sequence[JsonObject], **of_axes: int) -> dict[str, object]:
    """Return a series that is nothing but lines across a chart. Each place has an axis and how it looks."""
    lines = {"symbol": "none", "animation": False, "data": list(places)}
    return {"type": "line", "data": [], "markLine": lines, **of_axes}


def _part(given: object) -> dict[str, object]:
    return dict(given) if isinstance(given, Mapping) else {}
