"""Metrics: every stored counter of the job's nodes, over time, with steps and restarts marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.analytics.selection import parse_ranks, ranges
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.explore import metric_chart
from pulsetrain.dashboard.models.step_marks import MOST_ROUNDS, StepMark, marks, narrower, round_steps
from pulsetrain.dashboard.models.text import duration
from pulsetrain.dashboard.models.times import TimeChoice, read
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import explore, views

_SERIES = 12
_FIELDS = (
    ("find", "Find", 200, "cpu, net, gpu ..."),
    ("counter", "Counter", 260, "choose below"),
    ("node", "Node", 180, "all, or a, b"),
    ("ranks", "Ranks", 120, "all"),
)
"""Of each field: its name in the address, its label, its width, and what it says while it is empty."""


@dataclass(frozen=True, kw_only=True)
class _View:
    """What is chosen: part of a counter's name, a counter, and of which nodes or ranks. Empty: all."""

    find: str = ""
    counter: str = ""
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def where(self) -> dict[str, tuple[str, ...] | tuple[int, ...]]:
        """The part of it that the queries take."""
        return {"nodes": self.nodes, "ranks": self.ranks}


def _view(asked: Mapping[str, str]) -> _View:
    """The view of an address. Raises `UsageError` for ranks that cannot be read."""
    nodes = (name.strip() for name in asked.get("node", "").split(","))
    return _View(
        find=asked.get("find", "").strip(),
        counter=asked.get("counter", "").strip(),
        nodes=tuple(dict.fromkeys(name for name in nodes if name)),
        ranks=parse_ranks(asked.get("ranks", "")),
    )


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        asked = {
            name: st.text_input(label, key=name, bind="query-params", width=width, placeholder=empty) or ""
            for name, label, width, empty in _FIELDS
        }
    try:
        view = _view(asked)
    except UsageError as error:
        st.warning(str(error))
        return
    page.live(partial(_body, page.chosen_time(), view), every_s=4.0)


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""
    time = read(asked)
    try:
        view = _view(asked)
    except UsageError:
        return ()

    def counters() -> None:
        from_ns, to_ns = parts.times(source, job, time)
        if known := _known(source, job, view, from_ns, to_ns):
            _series(source, job, view.counter or known[0]["name"], view, from_ns, to_ns)

    def steps() -> None:
        _steps(source, job, *parts.times(source, job, time))

    return (counters, steps, partial(source.rows, views.events, job, ("attempt_started",)))


def _known(source: Source, job: str, view: _View, from_ns: int, to_ns: int) -> list[JsonObject]:
    """The counters that are on record in this time and match."""
    ask = partial(source.rows, explore.metric_names, job, from_ns=from_ns, to_ns=to_ns, **view.where)
    rows = ask() or ask(whole=True)
    return [row for row in rows if view.find.lower() in row["name"].lower()]


def _series(
    source: Source, job: str, name: str, view: _View, from_ns: int, to_ns: int
) -> Sequence[JsonObject]:
    ask = partial(source.rows, explore.metric_series, job, name=name, series=_SERIES, **view.where)
    return ask(from_ns=from_ns, to_ns=to_ns) or ask(from_ns=from_ns, to_ns=to_ns, whole=True)


def _steps(source: Source, job: str, from_ns: int, to_ns: int) -> list[StepMark]:
    """A few round steps that began in this time."""
    row = next((r for r in source.rows(views.jobs) if r["job"] == job), None)
    if row is None:
        return []
    steps: tuple[int, ...] | None = round_steps(int(row["first_step"]), int(row["last_step"]))
    rows: Sequence[JsonObject] = ()
    for _ in range(MOST_ROUNDS):
        if steps is None:
            break
        rows = source.rows(explore.step_starts, job, steps)
        steps = narrower(rows, steps, from_ns, to_ns)
    return marks(rows, from_ns, to_ns)


def _body(time: TimeChoice, view: _View) -> None:
    job = page.chosen_job()
    if not job:
        page.empty("No data: no job has been seen yet.")
        return
    from_ns, to_ns = parts.times(page.source(), job, time)
    known = _known(page.source(), job, view, from_ns, to_ns)
    if not known:
        page.empty(
            "No data: no counter of these nodes is on record in this time.",
            "Choose a longer time, or clear Find, Node and Ranks.",
        )
        return
    chosen = view.counter or known[0]["name"]
    _chart(job, chosen, view, from_ns, to_ns)
    page.table(
        ["counter", "nodes", "devices", "samples"],
        [_row(job, row, view) for row in known],
        right=(1, 2, 3),
    )
    counted_ns = max(int(row["counted_ns"]) for row in known)
    if counted_ns > from_ns:
        many = f"Of so many nodes the last {duration(to_ns - counted_ns)} are counted and compared."
        st.html(f'<div class="muted">{many} Choose nodes or ranks to count all of the time.</div>')


def _chart(job: str, name: str, view: _View, from_ns: int, to_ns: int) -> None:
    rows = _series(page.source(), job, name, view, from_ns, to_ns)
    if not rows:
        page.empty(f"No data: no sample of {name} in this time.")
        return
    events = page.source().rows(views.events, job, ("attempt_started",))
    launches = [event["ts_ns"] for event in events if from_ns <= event["ts_ns"] <= to_ns]
    lines, in_all = len({(row["node"], row["device"]) for row in rows}), rows[0]["series_in_all"]
    more = f" The {lines} that moved most of {in_all:,}." if in_all > lines else ""
    legend = f"Dotted: a launch of the job. At the foot: when a step began.{more}"
    st.html(f'<div><b>{escape(name)}</b> <span class="muted">{legend}</span></div>')
    steps = _steps(page.source(), job, from_ns, to_ns)
    drawn = metric_chart(rows, name, launches, page.theme(), steps=steps)
    page.chart(drawn, key="metric", alt=f"{name} over time")


def _row(job: str, row: JsonObject, view: _View) -> list[str]:
    link = page.href(
        "metrics", job=job, counter=row["name"], node=", ".join(view.nodes), ranks=ranges(view.ranks)
    )
    return [
        f'<a href="{link}">{escape(row["name"])}</a>',
        f"{row['nodes']:,}",
        f"{row['devices']:,}",
        f"{row['samples']:,}",
    ]
