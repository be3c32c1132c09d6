"""Heatmap: every machine (or rank) by phase, or by step window, as a ratio to its cohort."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.analytics.selection import parse_steps
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page
from pulsetrain.dashboard.models import heatmap as model
from pulsetrain.dashboard.models.steps import Window, sample, window
from pulsetrain.stream.queries import views

_REFRESH_S = 4.0
_HINT = (
    "Cohort: ranks of the same pipeline stage. A low ratio in a communication column marks the rank that the "
    "others wait for. Click a cell for its timeline."
)
_WINDOWS = {"last 20 steps": 20, "last 100": 100, "last 1,000": 1000}


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        by = st.segmented_control(
            "Rows", ["node", "rank"], default="node", required=True, key="by", bind="query-params"
        )
        phase = st.text_input(
            "Phase over steps", key="phase", bind="query-params", width=170, placeholder="all phases",
            help="Give a phase such as forward to see it over step windows.",
        )  # fmt: skip
        recent = st.selectbox("Window", list(_WINDOWS), key="window", bind="query-params", width=150)
        steps = st.text_input("or steps", key="range", bind="query-params", width=120, placeholder="40:60")
        find = st.text_input("Find", key="find", bind="query-params", width=170, placeholder="node or rank")
    try:
        parse_steps(steps or "")
    except UsageError as error:
        st.warning(str(error))
        return
    body = partial(_body, str(by), (phase or "").strip(), find or "", steps or "", _WINDOWS[recent])
    page.live(body, every_s=_REFRESH_S)


def _body(by: str, phase: str, find: str, steps: str, last: int) -> None:
    job = page.chosen_job()
    jobs = page.source().rows(views.jobs)
    chosen = window(jobs, job, steps=steps, last=last)
    if chosen is None:
        page.empty("No data: no step of this job is on record.")
        return
    sampled = min(sample(jobs, job), chosen.width)
    grid = model.grid(_cells(job, by, phase, chosen, sampled), find=find)
    if not grid.rows:
        page.empty(
            f"No data: no span{f' of phase {phase}' if phase else ''} in steps {chosen}.",
            "Choose other steps, or clear Find.",
        )
        return
    st.html(_sentence(grid, chosen, sampled))
    title = f"{phase}, first step of each window" if phase else ""
    clicked = page.clickable_chart(
        model.figure(grid, page.theme(), columns_title=title),
        key="heat",
        alt="Ratio of each row to its cohort's median",
    )
    _open_timeline(grid, job, chosen, clicked)


def _open_timeline(grid: model.Grid, job: str, chosen: Window, clicked: Sequence[JsonObject]) -> None:
    """Open the timeline of the rank that was clicked, if one was."""
    rank, step = model.selected(grid, clicked)
    if rank < 0:
        return
    first, last = (step, step + 2) if step >= 0 else (max(chosen.first, chosen.last - 3), chosen.last)
    st.switch_page(
        st.session_state["pages"]["timeline"],
        query_params={"job": job, "ranks": str(rank), "steps": f"{first}:{last}"},
    )


def _cells(job: str, by: str, phase: str, chosen: Window, sampled: int) -> Sequence[JsonObject]:
    shown = views.HeatmapRange(by=by, first=chosen.first, last=chosen.last, sample=sampled)
    if phase:
        return page.source().rows(views.heat_by_step, job, shown, phase=phase)
    return page.source().rows(views.heat_by_phase, job, shown)


def _sentence(grid: model.Grid, chosen: Window, sampled: int) -> str:
    theme = page.theme()
    spaced = f" (every {chosen.width / sampled:.0f}th looked at)" if sampled < chosen.width else ""
    more = f" {grid.left_out:,} rows nearer to their cohort are left out." if grid.left_out else ""
    legend = "".join(
        f"<span><i class='swatch' style='background:{colour}'></i>{word}</span>"
        for colour, word in ((theme.quicker, "quicker"), (theme.slower, "slower"), (theme.missing, "no data"))
    )
    return (
        f"<div><b>{escape(grid.worst)}</b> "
        f"<span class='muted'>Steps {chosen}{spaced}.{more} {_HINT}</span></div>"
        f"<div class='legend'>{legend}</div>"
    )
