"""Alerts: what fires, how bad it is, who has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import streamlit as st

from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.operations import moment_ns, ordered_alerts
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
    waiting = [a for a in alerts if a.get("state") != "resolved" and not a.get("acknowledged_by")]
    for alert in waiting[:_WITH_BUTTON]:
        _card(alert)
    rest = [a for a in alerts if a not in waiting[:_WITH_BUTTON]]
    if rest:
        page.table(
            ["severity", "state", "kind", "about", "what was seen", "since", "count", "acknowledged"],
            [_row(a) for a in rest],
            right=(6,),
        )


def _card(alert: Mapping[str, Any]) -> None:
    since = moment_ns(alert.get("since_ns", alert.get("since")))
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.html(
            f"{pill(str(alert['severity']), SEVERITIES)} <b>{escape(str(alert['kind']))}</b> "
            f"{escape(str(alert['subject']))}: {escape(str(alert['summary']))} <span class='muted'>· "
            f"{escape(str(alert.get('state', '')))} since {clock(since)} UTC, {ago(since, page.now_ns())}"
            f" · seen {alert.get('count', 1)} times</span>",
            width="stretch",
        )
        st.button("Acknowledge", key=f"ack-{alert['id']}", on_click=_acknowledge, args=(str(alert["id"]),))


def _acknowledge(alert: str) -> None:
    try:
        page.source().client.acknowledge(alert, st.session_state.get("ack_note", ""))
    except PulsetrainError as error:
        st.session_state["alert_error"] = str(error)
    page.source().cache.forget("alerts")


def _row(alert: Mapping[str, Any]) -> list[str]:
    since = moment_ns(alert.get("since_ns", alert.get("since")))
    return [
        pill(str(alert["severity"]), SEVERITIES),
        escape(str(alert.get("state", ""))),
        escape(str(alert["kind"])),
        escape(str(alert["subject"])),
        escape(str(alert["summary"])),
        f'<span title="{clock(since)} UTC">{ago(since, page.now_ns())}</span>',
        str(alert.get("count", 1)),
        escape(str(alert.get("acknowledged_by") or "-")),
    ]
