"""Logs: what ranks, nodes and kernels wrote, by time, rank, severity and text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from pulsetrain.analytics.selection import parse_ranks
from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.explore import SEVERE
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.stream.queries import explore


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Search", key="text", bind="query-params", width=240, placeholder="words in a line"
        )
        ranks = st.text_input("Ranks", key="ranks", bind="query-params", width=120, placeholder="all")
        node = st.text_input("Node", key="node", bind="query-params", width=140, placeholder="all")
        severity = st.selectbox("Severity", list(SEVERE), key="severity", bind="query-params", width=180)
        source = st.selectbox(
            "Source", ["", "stdout", "stderr", "kmsg", "agent", "hub"], key="source", bind="query-params",
            width=110, format_func=lambda name: name or "all",
        )  # fmt: skip
    try:
        chosen = parse_ranks(ranks or "")
    except UsageError as error:
        st.warning(str(error))
        return
    wanted = explore.LogFilter(
        ranks=chosen,
        severities=SEVERE[severity],
        text=text or "",
        node=(node or "").strip(),
        source=source or "",
    )
    page.live(partial(_body, page.chosen_time(), wanted))


def _body(time: TimeChoice, wanted: explore.LogFilter) -> None:
    job = page.chosen_job()
    if not job:
        page.empty("No data: no job has been seen yet.")
        return
    from_ns, to_ns = parts.times(page.source(), job, time)
    lines = page.source().rows(explore.log_lines, job, replace(wanted, from_ns=from_ns, to_ns=to_ns))
    parts.logs(lines, hint="Choose a longer time, other ranks, or clear the text.")
