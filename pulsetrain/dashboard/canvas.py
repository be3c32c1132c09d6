"""The canvas of the page Timeline: a Streamlit component of plain files, without a build step."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    from streamlit.components.v2.types import ComponentRenderer

_FILES = Path(__file__).with_name("canvas_files")
_SCRIPTS = ("payload.js", "words.js", "painter.js", "timeline.js")


def script() -> str:
    """The whole script. Its default export is what Streamlit calls with each new `data`."""
    return "\n".join((_FILES / name).read_text() for name in _SCRIPTS)


def style() -> str:
    """The style sheet. It applies inside the component only."""
    return (_FILES / "timeline.css").read_text()


def frame() -> str:
    """The HTML that the script fills."""
    return (_FILES / "timeline.html").read_text()


@functools.cache
def canvas() -> ComponentRenderer:
    """The command that draws the bytes of `models.timeline.payload`.

    Its state `view` is the part of the time that is shown: "" for all, else step:from:to in ms after that
    step began. Its state `rank` is the chosen rank, "" for none. Its trigger `open` is the rank whose page is
    wanted. The canvas takes `view` and `rank` from the page's address when it opens.
    """
    return st.components.v2.component("pulsetrain_timeline", html=frame(), css=style(), js=script())
