"""Alerts: what fires, how bad it is, who has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import streamlit as st

from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.operations import about, moment_ns, needs_a_person, ordered_alerts, times
from pulsetrain.dashboard.models.states import SEVERITIES, pill
from pulsetrain.dashboard.models.text import ago, clock
from pulsetrain.stream.errors import PulsetrainError

_WITH_BUTTON = 20


def show() -> None:
    """The page."""
    st.text_input(
        "Note for the acknowledgement",
        key="ack_note",
        placeholder="optional: what you know about it",
        width=420,
    )
    page.live(_body)


def _body() -> None:
    alerts = ordered_alerts(page.source().alerts())
    if not alerts:
        page.empty(
            "No alert is on record.",
            "That says only that no rule fired; the verdict above says how the job is.",
        )
        return
    waiting = [alert for alert in alerts if needs_a_person(alert)]
    for alert in waiting[:_WITH_BUTTON]:
        _card(alert)
    rest = [alert for alert in alerts if alert not in waiting[:_WITH_BUTTON]]
    if rest:
        page.table(
            ["severity", "state", "kind", "about", "what was seen", "since", "seen", "acknowledged"],
            [_row(alert) for alert in rest],
        )


def _card(alert: Mapping[str, Any]) -> None:
    since = moment_ns(alert.get("since_ns", alert.get("since")))
    with st.container(border=True):
        words, button = st.columns([8, 1], vertical_alignment="center")
        words.html(
            f"{pill(str(alert['severity']), SEVERITIES)} <b>{escape(str(alert['kind']))}</b>, "
            f"{escape(about(alert))}: {escape(str(alert['summary']))} <span class='muted'>· "
            f"{escape(str(alert.get('state', '')))} since {clock(since)} UTC, {ago(since, page.now_ns())}"
            f" · seen {times(alert.get('count'))}</span>"
        )
        button.button(
            "Acknowledge", key=f"ack-{alert['id']}", on_click=_acknowledge, args=(str(alert["id"]),)
        )


def _acknowledge(alert: str) -> None:
    try:
        page.source().client.acknowledge(alert, st.session_state.get("ack_note", ""))
    except PulsetrainError as error:
        st.toast(f"Not acknowledged: {error}")
    page.source().cache.forget("alerts")


def _row(alert: Mapping[str, Any]) -> list[str]:
    since = moment_ns(alert.get("since_ns", alert.get("since")))
    return [
        pill(str(alert["severity"]), SEVERITIES),
        escape(str(alert.get("state", ""))),
        escape(str(alert["kind"])),
        escape(about(alert)),
        escape(str(alert["summary"])),
        f'<span title="{clock(since)} UTC">{ago(since, page.now_ns())}</span>',
        times(alert.get("count")),
        escape(str(alert.get("acknowledged_by") or "-")),
    ]
