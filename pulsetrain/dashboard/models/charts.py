"""What every chart has in common: colours for light and dark, margins, an empty frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import plotly.graph_objects as go

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


def frame(theme: Theme, *, height: int, **layout: object) -> go.Figure:
    """Return an empty figure in the common layout. `uirevision` keeps zoom and camera across refreshes."""
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 20, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "Source Sans, sans-serif", "size": 13, "color": theme.text},
        hoverlabel={"font": {"family": "Source Sans, sans-serif", "size": 13}},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "font": {"size": 12}},
        uirevision="keep",
        dragmode="zoom",
        modebar={"orientation": "v"},
        **layout,
    )
    axis = {
        "gridcolor": theme.grid,
        "zerolinecolor": theme.grid,
        "linecolor": theme.grid,
        "tickfont": {"color": theme.muted, "size": 12},
        "title": {"font": {"color": theme.muted, "size": 12}},
        "automargin": True,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure
