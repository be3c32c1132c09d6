"""Stacks: where the code of every rank stands, whose stack differs, and who lags by NCCL's own counts."""

from __future__ import annotations

import json
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.analytics.selection import parse_ranks
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.stacks import StackLine, of_ranks, stack_lines, suspects
from pulsetrain.dashboard.models.text import ago, clock, fold
from pulsetrain.stream.queries import views

_MOST_LINES = 400
_RAS_COLUMNS = ("communicator", "size", "behind", "silent", "ahead", "sentence")


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ranks = st.text_input("Ranks", key="ranks", bind="query-params", width=220, placeholder="all")
        st.button("Read the stacks now", key="read_stacks", on_click=_read)
        st.toggle("all threads", key="threads", bind="query-params")
    try:
        chosen = parse_ranks(ranks or "")
    except UsageError as error:
        st.warning(str(error))
        return
    page.live(partial(_body, chosen))


def _read() -> None:
    job = page.chosen_job()
    try:
        page.source().read_stacks(job)
    except PulsetrainError as error:
        page.say(f"Not read: {error}")
    page.source().forget(("stacks", job))


def _body(ranks: tuple[int, ...]) -> None:
    page.said()
    job = page.chosen_job()
    _ras(job)
    reading = (page.source().stacks(job) if page.source().job(job) else {}) or _stored(job)
    if not reading:
        page.empty(
            "No stacks were read in this job.",
            "They are read when the job falls silent, or by the button above; no rank is stopped for it.",
        )
        return
    taken = int(reading["ts_ns"])
    st.html(
        f'<div id="stacks"><b>{escape(str(reading["sentence"]))}</b> <span class="muted">attempt '
        f"{reading['attempt']}, {clock(taken)} UTC, {ago(taken, page.now_ns())}</span></div>"
    )
    for part in reading["blind"]:
        st.html(f'<div class="stale">ranks {escape(part["ranks"])}: {escape(part["reason"])}</div>')
    blamed = attribute(page.findings(job))
    tree = _chosen(reading)
    lines = stack_lines(of_ranks(tree, ranks) if ranks else tree, suspects(reading, blamed.culprits))
    if not lines:
        page.empty(f"No stack of ranks {fold(ranks)} was read.", "Choose other ranks.")
        return
    page.table(["ranks", "frame"], [_row(line) for line in lines[:_MOST_LINES]])
    if len(lines) > _MOST_LINES:
        st.html(f'<div class="muted">The first {_MOST_LINES} of {len(lines):,} lines.</div>')


def _ras(job: str) -> None:
    """What NCCL's RAS said of the job, where it said anything: who lags in which communicator."""
    said = _stored(job, "nccl_ras")
    if not isinstance(said.get("communicators"), list):
        return
    taken = int(said["ts_ns"])
    st.html(
        f'<div id="ras"><b>{escape(str(said["sentence"]))}</b> <span class="muted">attempt '
        f"{said['attempt']}, {clock(taken)} UTC, {ago(taken, page.now_ns())}</span></div>"
    )
    rows = [[escape(str(c.get(name, ""))) for name in _RAS_COLUMNS] for c in said["communicators"]]
    if rows:
        page.table(list(_RAS_COLUMNS), rows)


def _stored(job: str, kind: str = "stacks") -> JsonObject:
    """The newest reading on record: of a job that is over, or from before the hub was restarted."""
    rows = page.source().rows(views.events, job, (kind,), limit=1) if job else []
    if not rows:
        return {}
    try:
        return {"attempt": rows[0]["attempt"], **json.loads(rows[0]["detail"])}
    except ValueError:
        return {}


def _chosen(reading: JsonObject) -> list[JsonObject]:
    """The main thread's tree, or those of all threads."""
    return list(reading["tree"]) if st.session_state.get("threads") else list(reading["tree"][:1])


def _row(line: StackLine) -> list[str]:
    """The cells of a frame. What stands where only ranks at fault stand is bold and says so."""
    text = escape(line.frame)
    if line.at_fault:
        text = f'<b class="culprit">{text}</b>'
    return [escape(line.ranks), f'<span style="padding-left:{1.2 * line.depth:.1f}em">{text}</span>']
