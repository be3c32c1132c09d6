"""Metrics: every stored counter of the job's nodes, over time, with restarts marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.explore import metric_figure
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import explore, views

_SERIES = 12


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        span = parts.span_menu()
        find = st.text_input(
            "Find", key="find", bind="query-params", width=200, placeholder="cpu, net, gpu ..."
        )
        name = st.text_input(
            "Counter", key="counter", bind="query-params", width=260, placeholder="choose below"
        )
        node = st.text_input("Node", key="node", bind="query-params", width=140, placeholder="all")
    page.live(
        partial(_body, span, (find or "").strip(), (name or "").strip(), (node or "").strip()), every_s=4.0
    )


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""
    last, find, counter, node = (asked.get(key, "").strip() for key in ("last", "find", "counter", "node"))

    def counters() -> None:
        from_ns, to_ns = parts.times(source, job, last)
        if known := _known(source, job, find, from_ns, to_ns):
            _series(source, job, counter or known[0]["name"], node, from_ns, to_ns)

    return (counters, partial(source.rows, views.events, job, ("attempt_started",)))


def _known(source: Source, job: str, find: str, from_ns: int, to_ns: int) -> list[JsonObject]:
    """The counters that are on record in this time and match."""
    rows = source.rows(explore.metric_names, job, from_ns=from_ns, to_ns=to_ns)
    return [row for row in rows if find.lower() in row["name"].lower()]


def _series(source: Source, job: str, name: str, node: str, from_ns: int, to_ns: int) -> Sequence[JsonObject]:
    nodes = (node,) if node else ()
    return source.rows(
        explore.metric_series, job, name=name, from_ns=from_ns, to_ns=to_ns, nodes=nodes, series=_SERIES
    )


def _body(span: str, find: str, name: str, node: str) -> None:
    job = page.chosen_job()
    if not job:
        page.empty("No data: no job has been seen yet.")
        return
    from_ns, to_ns = parts.times(page.source(), job, span)
    known = _known(page.source(), job, find, from_ns, to_ns)
    if not known:
        page.empty(
            "No data: no counter of this job's nodes is on record in this time.", "Choose a longer time."
        )
        return
    chosen = name or known[0]["name"]
    _chart(job, chosen, node, from_ns, to_ns)
    page.table(
        ["counter", "nodes", "devices", "samples"],
        [_row(job, row, node) for row in known],
        right=(1, 2, 3),
    )


def _chart(job: str, name: str, node: str, from_ns: int, to_ns: int) -> None:
    rows = _series(page.source(), job, name, node, from_ns, to_ns)
    if not rows:
        page.empty(f"No data: no sample of {name} in this time.")
        return
    events = page.source().rows(views.events, job, ("attempt_started",))
    marks = [event["ts_ns"] for event in events if from_ns <= event["ts_ns"] <= to_ns]
    lines, in_all = len({(row["node"], row["device"]) for row in rows}), rows[0]["series_in_all"]
    more = f" The {lines} that moved most of {in_all:,}." if in_all > lines else ""
    st.html(f'<div><b>{escape(name)}</b> <span class="muted">Dotted: a launch of the job.{more}</span></div>')
    page.chart(metric_figure(rows, name, marks, page.theme()), key="metric", alt=f"{name} over time")


def _row(job: str, row: JsonObject, node: str) -> list[str]:
    link = page.href("metrics", job=job, counter=row["name"], node=node)
    return [
        f'<a href="{link}">{escape(row["name"])}</a>',
        f"{row['nodes']:,}",
        f"{row['devices']:,}",
        f"{row['samples']:,}",
    ]
