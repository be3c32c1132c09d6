"""Clicks on a rank of the three-dimensional chart: a Streamlit component without anything to see."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    from streamlit.components.v2.types import ComponentRenderer

CHART_KEY = "mesh"
"""The key of the chart that the component listens to. `rank_clicks.js` finds it by its class."""


@functools.cache
def listener() -> ComponentRenderer:
    """The command that listens. Its trigger `rank` is the id of the point that was clicked."""
    script = Path(__file__).with_name("rank_clicks.js").read_text()
    return st.components.v2.component("pulsetrain_rank_clicks", js=script)
