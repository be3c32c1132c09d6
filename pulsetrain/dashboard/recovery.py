"""Recovery history: where the time of each recovery went."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.recovery import RecoveryLine, recoveries, recovery_chart
from pulsetrain.dashboard.models.text import clock, duration
from pulsetrain.dashboard.models.time_use import time_sentence
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.stream.queries import views

_BARS = 20
_COLUMNS = (
    "when, UTC",
    "attempt",
    "cause",
    "culprit",
    "fault to next step",
    "detect",
    "resumed at step",
    "steps lost",
    "by",
)


def show() -> None:
    """The page."""
    page.live(partial(_body, page.chosen_time()))


def _body(time: TimeChoice) -> None:
    job = page.chosen_job()
    rows = _recoveries(job, time) if job else []
    history = recoveries(rows)
    went = time_sentence(page.source().job(job) or {}) if job else ""
    if went:
        st.html(f'<div id="time-use">{escape(went)}</div>')
    if not history:
        page.empty(f"No recovery is on record for this job{' in this time' if time.given else ''}.")
        return
    mean = sum(line.total_ns for line in history) / len(history)
    lost = sum(line.lost_steps for line in history)
    st.html(
        f"<div><b>{len(history)} {'recovery' if len(history) == 1 else 'recoveries'}, "
        f"{duration(mean)} on average, "
        f"{lost} {'step' if lost == 1 else 'steps'} done twice.</b></div>"
    )
    page.chart(
        recovery_chart(history[:_BARS], page.theme()),
        key="recoveries",
        alt="Duration of each recovery by stage",
    )
    page.table(list(_COLUMNS), [_row(line) for line in history], right=(1, 4, 5, 6, 7))


def _recoveries(job: str, time: TimeChoice) -> Sequence[JsonObject]:
    source = page.source()
    return source.rows(views.events, job, ("recovery",), **parts.within(source, job, time))


def _row(line: RecoveryLine) -> list[str]:
    """The cells of `_COLUMNS`."""
    return [
        clock(line.ts_ns),
        str(line.attempt),
        escape(line.cause),
        escape(line.culprit),
        duration(line.total_ns),
        duration(line.stages_ns["detect"]),
        str(line.resumed_step) if line.resumed_step >= 0 else "-",
        str(line.lost_steps),
        escape(line.actor),
    ]
