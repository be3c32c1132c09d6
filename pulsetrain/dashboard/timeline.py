"""Timeline of chosen ranks and steps, and its download for ui.perfetto.dev."""

from __future__ import annotations

from functools import partial

import streamlit as st

from pulsetrain.analytics.selection import parse_ranks
from pulsetrain.analytics.trace_export import export
from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard import page
from pulsetrain.dashboard.models import timeline as model
from pulsetrain.dashboard.models.steps import Window, window
from pulsetrain.dashboard.models.text import fold
from pulsetrain.stream.queries import views

_LAST = 2
_LAST_MAX = 4


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ranks = st.text_input("Ranks", key="ranks", bind="query-params", width=220, placeholder="0-3, 7")
        steps = st.text_input(
            "Steps", key="steps", bind="query-params", width=150, placeholder=f"last {_LAST}"
        )
        download = st.container(width="content")
    job = page.chosen_job()
    try:
        wanted = parse_ranks(ranks or "")
        chosen = window(page.source().rows(views.jobs), job, steps=steps or "", last=_LAST)
    except UsageError as error:
        st.warning(str(error))
        return
    wanted = wanted or tuple(range(8))
    if chosen is not None:
        with download:
            _download(job, wanted, chosen)
    page.live(partial(_body, job, wanted, steps or ""))


def _download(job: str, ranks: tuple[int, ...], chosen: Window) -> None:
    name = f"{job}-{chosen.first}-{chosen.last}.perfetto.json"
    st.download_button(
        "Download for ui.perfetto.dev",
        data=lambda: export(page.source().store(), job, first=chosen.first, last=chosen.last, ranks=ranks),
        file_name=name,
        mime="application/json",
        on_click="ignore",
        help="The same file as `pulsetrain trace export`.",
    )


def _body(job: str, ranks: tuple[int, ...], steps: str) -> None:
    chosen = window(page.source().rows(views.jobs), job, steps=steps, last=_LAST)
    first, last = (chosen.first, chosen.last) if chosen else (0, _LAST_MAX)
    # A step in progress is not in `steps` yet: its open spans are one step further on.
    ahead = 0 if steps else 1
    rows = page.source().rows(views.spans, job, ranks=ranks, first=first, last=last + ahead)
    if not rows:
        page.empty(
            f"No data: no span of ranks {fold(ranks)} in steps {first} to {last}.",
            "Choose other ranks or steps.",
        )
        return
    live = page.source().job(job)
    running = live.get("attempt", -1) if live.get("state") == "running" else -1
    shown = model.timeline(rows, live_attempt=int(running), now_ns=page.now_ns())
    more = (
        f" The {shown.left_out:,} shortest spans are left out. The download holds them."
        if shown.left_out
        else ""
    )
    st.html(
        f"<div class='muted'>Ranks {fold(ranks)}, steps {first} to {last + ahead}.{more} "
        "Times are each node's own clock. Hatched bars had not ended when last reported.</div>"
    )
    page.chart(model.figure(shown, page.theme()), key="timeline", alt="Spans of the chosen ranks over time")
