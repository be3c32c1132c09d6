"""Recovery history: where the time of each recovery went."""

from __future__ import annotations

from html import escape

import streamlit as st

from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.operations import recoveries, recovery_figure
from pulsetrain.dashboard.models.text import clock, duration
from pulsetrain.stream.queries import views

_BARS = 20


def show() -> None:
    """The page."""
    page.live(_body)


def _body() -> None:
    job = page.chosen_job()
    rows = page.source().rows(views.events, job, ("recovery",)) if job else []
    found = recoveries(rows)
    if not found:
        page.empty("No recovery is on record for this job.")
        return
    mean = sum(line.total_ns for line in found) / len(found)
    lost = sum(line.lost_steps for line in found)
    st.html(
        f"<div><b>{len(found)} {'recovery' if len(found) == 1 else 'recoveries'}, "
        f"{duration(mean)} on average, "
        f"{lost} {'step' if lost == 1 else 'steps'} done twice.</b></div>"
    )
    page.chart(
        recovery_figure(found[:_BARS], page.theme()),
        key="recoveries",
        alt="Duration of each recovery by stage",
    )
    page.table(
        [
            "when, UTC",
            "attempt",
            "cause",
            "culprit",
            "fault to next step",
            "detect",
            "resumed at step",
            "steps lost",
            "by",
        ],
        [
            [
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
            for line in found
        ],
        right=(1, 4, 5, 6, 7),
    )
