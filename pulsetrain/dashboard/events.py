"""Events: the audit of a job. Every action of the controller and of people, and what changed."""

from __future__ import annotations

from functools import partial
from html import escape

import streamlit as st

from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.explore import detail_text
from pulsetrain.dashboard.models.text import clock
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.stream.queries import explore


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        kind = st.text_input("Kind", key="kind", bind="query-params", width=180, placeholder="all")
        text = st.text_input(
            "Search", key="text", bind="query-params", width=280, placeholder="node, person, reason"
        )
    page.live(partial(_body, page.chosen_time(), (kind or "").strip(), (text or "").strip()))


def _body(time: TimeChoice, kind: str, text: str) -> None:
    job = page.chosen_job()
    if not job:
        page.empty("No data: no job has been seen yet.")
        return
    from_ns, to_ns = parts.times(page.source(), job, time)
    within = {"from_ns": from_ns, "to_ns": to_ns}
    kinds = page.source().rows(explore.event_kinds, job, **within)
    links = (
        f'<a href="{page.href("events", job=job, kind=row["kind"])}">{escape(row["kind"])}</a>'
        f" {row['times']:,}"
        for row in kinds
    )
    st.html(f'<div class="legend">{" ".join(f"<span>{link}</span>" for link in links)}</div>')
    rows = page.source().rows(explore.event_lines, job, kind=kind, text=text, **within)
    if not rows:
        page.empty("No event matches.", "Choose a longer time, or clear kind and text.")
        return
    if rows[0]["events_in_all"] > len(rows):
        st.html(f'<div class="muted">The newest {len(rows):,} of {rows[0]["events_in_all"]:,} events.</div>')
    page.table(
        ["time (UTC)", "what", "by", "node", "rank", "attempt", "detail"],
        [
            [
                f'<span class="nw">{clock(row["ts_ns"])}</span>',
                escape(row["kind"]),
                escape(row["actor"]),
                parts.node_link(job, row["node"]),
                parts.rank_link(job, row["rank"]),
                str(row["attempt"]) if row["attempt"] >= 0 else "-",
                escape(detail_text(row["detail"])),
            ]
            for row in rows
        ],
        right=(4, 5),
    )
