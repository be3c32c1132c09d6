"""Heatmap: job, stage, data-parallel block, node or rank by phase, or by step window, as time lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.analytics.selection import parse_steps
from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models import heatmap as model
from pulsetrain.dashboard.models.attribution import accused
from pulsetrain.dashboard.models.steps import Window, sample
from pulsetrain.dashboard.models.times import NAMES, TimeChoice
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import heat, views

_REFRESH_S = 4.0
_HINT = (
    "A cell is the rank of its row that loses most, in net time beside the median of its stage. "
    "◆ rows stand out. Click a cell to look below it."
)
_LAST = 20
_WINDOWS = {f"last {_LAST} steps": _LAST, "last 100": 100, "last 1,000": 1000}
_VIEW = frozenset({"by", "phase", "window", "range", "within", *NAMES})


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Which steps: those typed, else those that began in the chosen time, else the `last` newest."""

    typed: str = ""
    time: TimeChoice = field(default_factory=TimeChoice)
    last: int = _LAST


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        by = st.segmented_control(
            "Rows", list(heat.LEVELS), default="node", required=True, key="by", bind="query-params"
        )
        phase = st.text_input(
            "Phase over steps", key="phase", bind="query-params", width=150, placeholder="all phases",
            help="Give a phase such as forward to see it over step windows.",
        )  # fmt: skip
        recent = st.selectbox("Window", list(_WINDOWS), key="window", bind="query-params", width=150)
        steps = st.text_input("or steps", key="range", bind="query-params", width=110, placeholder="40:60")
        within = st.text_input(
            "Within", key="within", bind="query-params", width=200, placeholder="stage=3,rank=0:63",
            help="Only these ranks: stage, dp or rank, each one number or first:last.",
        )  # fmt: skip
        st.button("Up", key="up", on_click=_up, help="All ranks of the job again")
    chosen = _Steps(typed=steps or "", time=page.chosen_time(), last=_WINDOWS[recent])
    try:
        parse_steps(steps or "")
        spans = model.spans_of((within or "").strip())
    except UsageError as error:
        st.warning(str(error))
        return
    shown = heat.HeatView(
        by=str(by),
        first=0,
        last=0,
        phase=(phase or "").strip(),
        stages=spans.get("stages"),
        dps=spans.get("dps"),
        ranks=spans.get("ranks"),
    )
    page.live(partial(_body, shown, (within or "").strip(), chosen), every_s=_REFRESH_S)


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask, as it is before a view is chosen."""

    def heat_now() -> None:
        chosen, view = _view(source, job, heat.HeatView(by="node", first=0, last=0), _Steps())
        if chosen is not None:
            source.rows(heat.heat, job, view)

    return () if _VIEW & asked.keys() else (heat_now,)


def _view(
    source: Source, job: str, asked: heat.HeatView, steps: _Steps
) -> tuple[Window | None, heat.HeatView]:
    """The steps to show, None where there are none, and the view of them."""
    chosen = parts.window(source, job, steps.time, steps=steps.typed, last=steps.last)
    if chosen is None:
        return None, asked
    sampled = min(sample(source.rows(views.jobs), job), chosen.width)
    return chosen, replace(asked, first=chosen.first, last=chosen.last, sample=sampled)


def _up() -> None:
    st.session_state["within"], st.session_state["by"] = "", "node"


def _body(asked: heat.HeatView, within: str, steps: _Steps) -> None:
    job = page.chosen_job()
    chosen, view = _view(page.source(), job, asked, steps)
    if chosen is None:
        page.empty(parts.no_steps(steps.time))
        return
    named = accused(page.findings(job))
    grid = model.grid(page.source().rows(heat.heat, job, view), by=view.by, within=within, named=named)
    if not grid.rows:
        page.empty(
            f"No data: no span{f' of phase {view.phase}' if view.phase else ''} in steps {chosen}.",
            "Choose other steps, or clear Within.",
        )
        return
    st.html(_sentence(grid, chosen, view.sample))
    page.tell_unknown_mesh(job)
    title = f"{view.phase}, first step of each window" if view.phase else ""
    clicked = page.clickable_chart(
        model.grid_chart(grid, page.theme(), columns_title=title),
        key=f"heat-{view.by}-{within}",
        alt=f"Time lost of each row beside its cohort. {grid.worst}",
    )
    with st.expander("The same as a table"):
        _table(grid, job, chosen)
    selected = model.selected(grid, clicked)
    if selected is not None:
        name, parameters = _below(selected, chosen)
        page.open_page(name, job=job, **parameters)


def _below(cell: model.Chosen, chosen: Window) -> tuple[str, Mapping[str, object]]:
    """What lies below a cell: fewer ranks, or the timeline of one. A page and its parameters."""
    if cell.row.rank < 0:
        return "heatmap", cell.row.opens
    first, last = (cell.step, cell.step + 2) if cell.step >= 0 else (chosen.last - 3, chosen.last)
    return "timeline", {"ranks": cell.cell.rank, "steps": f"{max(chosen.first, first)}:{last}"}


def _table(grid: model.Grid, job: str, chosen: Window) -> None:
    """Each row with its worst cell. A link leads where a click on that cell does."""
    rows = []
    for row, cell, words in model.in_words(grid):
        name = escape(row.name)
        if cell is not None:
            below, parameters = _below(cell, chosen)
            name = f'<a href="{escape(page.href(below, job=job, **parameters))}">{name}</a>'
        rows.append([f'<span class="nw">{name}</span>', escape(words)])
    page.table(["row", "its worst cell"], rows)


def _sentence(grid: model.Grid, chosen: Window, sampled: int) -> str:
    theme = page.theme()
    spaced = f" (every {chosen.width / sampled:.0f}th looked at)" if sampled < chosen.width else ""
    legend = "".join(
        f"<span><i class='swatch' style='background:{colour}'></i>{word}</span>"
        for colour, word in (
            (theme.slower, "works longer than its cohort"),
            (theme.quicker, "waits longer"),
            (theme.missing, "no data"),
        )
    )
    return (
        f"<div id='worst'><b>{escape(grid.worst)}</b></div>"
        f"<div class='muted'>Steps {chosen}{spaced}. {_HINT}</div><div class='legend'>{legend}</div>"
    )
