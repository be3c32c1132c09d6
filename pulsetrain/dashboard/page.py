"""The frame of every page: connection, job in the URL, verdict strip, the refreshing body, errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode

import streamlit as st

from pulsetrain.core.errors import AuthError, PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models import charts, times
from pulsetrain.dashboard.models.attribution import Accused, accused
from pulsetrain.dashboard.models.charts import Chart
from pulsetrain.dashboard.models.overview import JobLine, job_lines, stale
from pulsetrain.dashboard.models.states import JOB_STATES, RANK_STATES, look, pill
from pulsetrain.dashboard.models.topology import mesh_note
from pulsetrain.dashboard.snapshot import HubSnapshot, take_snapshot
from pulsetrain.dashboard.source import Source
from pulsetrain.protocol.client import find_hub
from pulsetrain.stream.queries import views

if TYPE_CHECKING:
    import plotly.graph_objects as go

REFRESH_S = 2.0
_SAID_S = 12.0
_MOST_NAMED = 8
_BETWEEN = "from ... to (UTC)"
_SNAPSHOT, _IS_NEW = "snapshot", "snapshot_is_new"
_KEPT_TIME, _TIME_PAGE, _TIME_ADDRESS = "time_kept", "time_page", "time_address"


def source() -> Source:
    """The one connection of this dashboard to its hub, shared by all browser tabs."""
    return _connect()


_connect = st.cache_resource(show_spinner=False)(lambda: Source(find_hub()))


def theme() -> charts.Theme:
    """The chart colours for the theme that the browser shows."""
    return charts.DARK if st.context.theme.type == "dark" else charts.LIGHT


def now_ns() -> int:
    """UTC now."""
    return time.time_ns()


def href(page: str, **params: object) -> str:
    """The address of a page with its state and the chosen time range, as a relative link."""
    return with_time(f"{page}?{urlencode({k: v for k, v in params.items() if v not in ('', None)})}")


def with_time(address: str) -> str:
    """A relative link that has parameters, with the chosen time range."""
    return f"{address}{st.session_state.get(_TIME_ADDRESS, '')}"


def snapshot() -> HubSnapshot:
    """What the strip of this tab was drawn from. Before there is a strip: what the hub says now.

    Raises `PulsetrainError` if the hub has never answered.
    """
    return _kept_snapshot() or take_snapshot(source())


def _kept_snapshot() -> HubSnapshot | None:
    return cast("HubSnapshot | None", st.session_state.get(_SNAPSHOT))


def _renew_snapshot() -> None:
    try:
        st.session_state[_SNAPSHOT] = take_snapshot(source())
    except PulsetrainError:
        st.session_state.pop(_SNAPSHOT, None)


def lines() -> list[JobLine]:
    """Every job with its state. Raises `PulsetrainError` if the hub has never answered."""
    status = snapshot().status
    lines = job_lines([*status.get("jobs", []), *status.get("past_jobs", [])], _stored())
    return stale(lines, source().age_s)


def _stored() -> Sequence[JsonObject]:
    """Jobs on record: also those that the hub has not looked at yet."""
    try:
        return source().rows(views.jobs)
    except PulsetrainError:
        return []


def findings(job: str) -> list[JsonObject]:
    """What accuses somebody in a job. See `HubSnapshot.findings`."""
    return snapshot().findings(job)


def tell_unknown_mesh(job: str) -> None:
    """One line where nobody knows how the job's ranks are arranged."""
    note = mesh_note(source().job(job).get("instrumentation", {}))
    if note:
        st.html(f"<div class='muted'>{escape(note)}</div>")


def named(job: str) -> str:
    """Everybody that is accused, as links to their pages, each with its sign. "" for nobody."""
    found = accused(findings(job))
    if not found:
        return ""
    items = "".join(_accused_link(job, each) for each in found[:_MOST_NAMED])
    more = f"<span>and {len(found) - _MOST_NAMED:,} more</span>" if len(found) > _MOST_NAMED else ""
    return f'<div class="named" id="named">{items}{more}</div>'


def _accused_link(job: str, each: Accused) -> str:
    state = look(each.state, RANK_STATES)
    if each.subject_type == "rank":
        address = href("rank", job=job, rank=each.subject)
    else:
        address = href("node", job=job, node=each.node)
    return (
        f'<a href="{escape(address)}" style="--c:{state.colour}" title="{escape(each.summary)}">'
        f'<span aria-hidden="true">{state.glyph}</span> {escape(each.name)}</a>'
    )


def chosen_job() -> str:
    """Return the job that this view is about, "" for none.

    It is the job of the URL, else the one seen last in this tab, else the first. It is written back to the
    URL, so that a copied address shows the same job.
    """
    named = st.query_params.get("job") or st.session_state.get("last_job", "")
    if not named:
        try:
            known = lines()
        except PulsetrainError:
            known = []
        named = known[0].job if known else ""
    if named:
        st.session_state["last_job"] = named
        if st.query_params.get("job") != named:
            st.query_params["job"] = named
    return str(named)


def strip(*, sentence: bool, usual_time: str = "") -> None:
    """Draw the top of every page: which job, whether the hub answers, and with `sentence` the verdict.

    `usual_time` is for a page that is about a time range: what it shows while none is chosen, in words.
    """
    _renew_snapshot()
    st.session_state[_IS_NEW] = True
    with st.container(horizontal=True, vertical_alignment="bottom"):
        _job_menu()
        if usual_time:
            _time_menu(usual_time)
    try:
        times.choice(_time_asked())
    except UsageError as error:
        st.warning(f"{error}. The page shows what it does without a time.")
    st.fragment(partial(_strip, sentence), run_every=REFRESH_S)()


def chosen_time() -> times.TimeChoice:
    """The time range of this view. Nothing is chosen where the address has none, or one that is wrong."""
    return times.read(_time_asked())


def keep_time(name: str) -> None:
    """Take the time range along from one page to the next: it is the same on all of them.

    `name` is the page that is shown. The address of a page goes before what is kept.
    """
    asked = _time_asked()
    if not asked and st.session_state.get(_TIME_PAGE, name) != name:
        asked = st.session_state.get(_KEPT_TIME, {})
        st.query_params.update(asked)
    st.session_state[_KEPT_TIME], st.session_state[_TIME_PAGE] = asked, name
    st.session_state[_TIME_ADDRESS] = f"&{urlencode(asked)}" if asked else ""


def _time_asked() -> dict[str, str]:
    """What the address says of the time range."""
    return {name: value for name in times.NAMES if (value := st.query_params.get(name, ""))}


def _time_menu(usual: str) -> None:
    """The choice of the time range: up to now, or from one moment to another."""
    asked = _time_asked()
    between = "from" in asked or "to" in asked
    last = asked.get("last", "")
    st.session_state["time_menu"] = _BETWEEN if between else last if last in times.SPANS_NS else ""
    st.selectbox(
        "Time", ["", *times.SPANS_NS, _BETWEEN], key="time_menu", on_change=_choose_time, width=190,
        format_func=lambda span: span or usual,
        help="The same on all pages. Up to now, or up to the end of a job that is over.",
    )  # fmt: skip
    if not between:
        return
    for name, label in (("from", "From, UTC"), ("to", "To, UTC")):
        st.session_state[f"time_{name}"] = asked.get(name, "")
        st.text_input(
            label, key=f"time_{name}", on_change=partial(_choose_moment, name), width=170,
            placeholder="2026-11-25T03:00",
        )  # fmt: skip


def _choose_time() -> None:
    """Put what was chosen in the menu into the address. For moments that is the last hour at first."""
    span = str(st.session_state["time_menu"])
    for name in times.NAMES:
        st.query_params.pop(name, None)
    if span == _BETWEEN:
        now = now_ns()
        begin = now - times.SPANS_NS[times.USUAL]
        st.query_params.update({"from": times.moment_text(begin), "to": times.moment_text(now)})
    elif span:
        st.query_params["last"] = span


def _choose_moment(name: str) -> None:
    moment = str(st.session_state[f"time_{name}"] or "").strip()
    if moment:
        st.query_params[name] = moment
    else:
        st.query_params.pop(name, None)


def _job_menu() -> None:
    try:
        names = [line.job for line in lines()]
    except PulsetrainError:
        return
    current = chosen_job()
    if len({*names, current} - {""}) < 2:
        return
    options = names if current in names else [current, *names]

    def choose() -> None:
        st.query_params["job"] = st.session_state["last_job"] = st.session_state["job_menu"]

    st.selectbox(
        "Job", options, index=options.index(current), key="job_menu", on_change=choose, width=320,
    )  # fmt: skip


def _strip(sentence: bool) -> None:
    job = chosen_job()
    if not st.session_state.pop(_IS_NEW, False):
        _follow(job)
    try:
        line = next((each for each in lines() if each.job == job), None)
    except PulsetrainError as error:
        st.html(f'<div class="strip">{pill("no_data", JOB_STATES)} <b>{escape(_away(error))}</b></div>')
        return
    problem = source().problem
    if problem:
        known = f"The page shows what was known {source().age_s:.0f} s ago."
        st.html(f'<div class="stale" id="away">{escape(problem)}. {known}</div>')
    if not sentence:
        return
    if line is None:
        st.html(f'<div class="strip">{pill("no_data", JOB_STATES)} {escape(unknown(job))}</div>')
        return
    step = f"step {line.step:,} · " if line.step >= 0 else ""
    attempt = f"attempt {line.attempt}" if line.attempt >= 0 else "not started"
    st.html(
        f'<div class="strip">{pill(line.state, JOB_STATES)} <b>{escape(line.job)}</b>'
        f'<span class="sentence">{escape(line.sentence)}</span>'
        f'<span class="facts">{step}{attempt}</span></div>{named(job)}'
    )


def _follow(job: str) -> None:
    """Take a new snapshot. Where the verdict, who is accused or the number of open alerts has changed, all of
    the page is drawn from it.

    Some parts refresh themselves less often than the strip, and the menu does not. They would say what was.
    """
    before = _kept_snapshot()
    _renew_snapshot()
    now = _kept_snapshot()
    if before is not None and now is not None and not now.looks_like(before, job):
        st.rerun()


def unknown(job: str) -> str:
    """What is said of a job that the hub does not know, "" for none."""
    return f"The hub knows no job {job}. Choose another one." if job else "No job has been seen yet."


def _away(error: PulsetrainError) -> str:
    if isinstance(error, AuthError):
        return f"The hub refuses this dashboard: {error}."
    return f"The hub is away: {error}. Nothing is known until it answers. This page tries again by itself."


def say(sentence: str) -> None:
    """Tell the person of this tab what became of a click. It stays for some seconds.

    A toast would do, but Streamlit drops the style sheet with it.
    """
    st.session_state["said"] = (sentence, time.monotonic() + _SAID_S)


def said() -> None:
    """Draw what was said last, while it is news."""
    sentence, until_s = st.session_state.get("said", ("", 0.0))
    if sentence and time.monotonic() < until_s:
        st.html(f'<div class="stale" role="status">{escape(sentence)}</div>')


def open_page(name: str, **params: object) -> None:
    """Open another page. It may be called from a part that refreshes itself.

    The switch is made by the next run of the whole script: a part that switches pages itself may leave its
    own output on the new page, which ends in a white page.
    """
    st.session_state["go"] = (name, {k: str(v) for k, v in params.items() if v not in ("", None)})
    st.rerun()


def live(body: Callable[[], None], *, every_s: float = REFRESH_S) -> None:
    """Draw `body` now and again every `every_s` seconds while a browser shows this page."""
    st.fragment(partial(_guarded, body), run_every=every_s)()


def _guarded(body: Callable[[], None]) -> None:
    try:
        body()
    except PulsetrainError as error:
        empty(_away(error) if source().away else f"{error}.")


def is_missing(said: Callable[[], str]) -> bool:
    """Whether the page is about something that there is not. Then one sentence stands for all of its parts.

    `said` returns that sentence, "" where there is nothing to say. Then the page is drawn whole.
    """

    def tell() -> None:
        if sentence := said():
            empty(sentence)
        else:
            st.rerun()

    try:
        missing = bool(said())
    except PulsetrainError:
        return False  # the parts of the page say what is wrong
    if missing:
        live(tell)
    return missing


def empty(sentence: str, hint: str = "") -> None:
    """A page, or a part of it, that has nothing to show, and what is missing."""
    st.html(f'<div class="empty">{escape(sentence)}<br><small>{escape(hint)}</small></div>')


def chart(drawn: Chart, *, key: str, alt: str) -> None:
    """Draw a chart in its own colours. `alt` says in words what it shows."""
    st.echarts_chart(drawn.option, theme=None, height=drawn.height, key=key, renderer="svg", alt=alt)


def clickable_chart(drawn: Chart, *, key: str, alt: str) -> Sequence[JsonObject]:
    """Draw a chart and return what was clicked: the places of data by series."""
    event = st.echarts_chart(
        drawn.option, theme=None, height=drawn.height, key=key, renderer="svg", alt=alt, on_select="rerun"
    )
    return cast("Sequence[JsonObject]", event["selection"]["selected"])


def space(figure: go.Figure, *, key: str, alt: str) -> None:
    """Draw a figure in three dimensions in its own colours. `alt` says in words what it shows."""
    config = {"displaylogo": False, "displayModeBar": "hover"}
    st.plotly_chart(figure, theme=None, key=key, alt=alt, config=config)


def table(columns: list[str], rows: list[list[str]], *, right: tuple[int, ...] = ()) -> None:
    """Draw rows of ready HTML cells as a dense table. Columns in `right` hold numbers."""
    side = [' class="n"' if i in right else "" for i in range(len(columns))]
    head = "".join(f"<th{s}>{escape(c)}</th>" for c, s in zip(columns, side, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{s}>{c}</td>" for c, s in zip(row, side, strict=True)) + "</tr>" for row in rows
    )
    st.html(
        f'<div class="scroll"><table class="t"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
