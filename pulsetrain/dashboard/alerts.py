"""Alerts: what fires, how bad it is, who has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.alerts import (
    about,
    during,
    moment_ns,
    needs_a_person,
    ordered_alerts,
    silence_of,
    times,
)
from pulsetrain.dashboard.models.states import SEVERITIES, pill
from pulsetrain.dashboard.models.text import ago, clock, duration, words
from pulsetrain.dashboard.models.times import TimeChoice

_WITH_BUTTON = 20
_LENGTHS_S = {"30 minutes": 1800, "2 hours": 7200, "8 hours": 28_800, "1 day": 86_400, "1 week": 604_800}


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input("Note", key="ack_note", placeholder="optional: what you know about it", width=420)
        st.selectbox("Silence for", list(_LENGTHS_S), index=1, key="silence_for", width=160)
    page.live(partial(_body, page.chosen_time()))
    st.subheader("Silences", anchor=False)
    page.live(_silences)


def _body(time: TimeChoice) -> None:
    page.said()
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
    if time.given:
        from_ns, to_ns = parts.times(page.source(), page.chosen_job(), time)
        rest = [alert for alert in rest if during(alert, from_ns, to_ns, page.now_ns())]
        if not rest:
            st.html('<div class="muted">No other alert is on record in this time.</div>')
    if rest:
        page.table(
            [
                "severity",
                "state",
                "kind",
                "job",
                "about",
                "what was seen",
                "since",
                "seen",
                "acknowledged by",
            ],
            [_row(alert) for alert in rest],
        )


def _card(alert: JsonObject) -> None:
    since = moment_ns(alert.get("since_ns", alert.get("since")))
    name, other = str(alert["id"]), str(alert.get("job") or "")
    of_job = f"job {other}, " if other not in ("", page.chosen_job()) else ""
    with st.container(border=True):
        told, acknowledge, silence = st.columns([8, 1, 1], vertical_alignment="center")
        told.html(
            f"{pill(str(alert['severity']), SEVERITIES)} <b>{escape(words(str(alert['kind'])))}</b>, "
            f"{escape(of_job + about(alert))}: {escape(str(alert['summary']))} <span class='muted'>· "
            f"{escape(words(str(alert.get('state', ''))))} since {clock(since)} UTC, "
            f"{ago(since, page.now_ns())} · seen {times(alert.get('count'))}</span>"
        )
        acknowledge.button("Acknowledge", key=f"ack-{name}", on_click=_acknowledge, args=(name,))
        silence.button("Silence", key=f"silence-{name}", on_click=_silence, args=(silence_of(alert),))


def _acknowledge(alert: str) -> None:
    try:
        page.source().client.acknowledge(alert, st.session_state.get("ack_note", ""))
    except PulsetrainError as error:
        page.say(f"Not acknowledged: {error}")
    page.source().forget("alerts")


def _silence(matchers: Mapping[str, str]) -> None:
    seconds = _LENGTHS_S[st.session_state.get("silence_for", "2 hours")]
    try:
        page.source().client.silence(matchers, seconds, st.session_state.get("ack_note", ""))
    except PulsetrainError as error:
        page.say(f"Not silenced: {error}")
    page.source().forget("alerts", "silences")


def _silences() -> None:
    """Those in force, each with its end and a button to end it now."""
    silences = page.source().silences()
    if not silences:
        st.html('<div class="muted">None is in force.</div>')
    for silence in silences:
        told, button = st.columns([8, 1], vertical_alignment="center")
        fields = ", ".join(f"{name} = {value}" for name, value in silence["matchers"].items())
        left = duration(int(silence["expires_ns"]) - page.now_ns())
        covers = f", {silence['covers']} active alert(s)" if "covers" in silence else ""
        told.html(
            f"<b>{escape(fields)}</b> until {clock(int(silence['expires_ns']))} UTC, {left} left{covers}"
            f" <span class='muted'>by {escape(str(silence['author']))}"
            f" {escape(str(silence.get('comment') or ''))}</span>"
        )
        name = str(silence["id"])
        button.button("End", key=f"end-{name}", on_click=_end_silence, args=(name,))


def _end_silence(silence: str) -> None:
    try:
        page.source().client.end_silence(silence)
    except PulsetrainError as error:
        page.say(f"Not ended: {error}")
    page.source().forget("alerts", "silences")


def _row(alert: JsonObject) -> list[str]:
    since = moment_ns(alert.get("since_ns", alert.get("since")))
    return [
        pill(str(alert["severity"]), SEVERITIES),
        escape(words(str(alert.get("state", "")))),
        escape(words(str(alert["kind"]))),
        escape(str(alert.get("job") or "-")),
        escape(about(alert)),
        escape(str(alert["summary"])),
        f'<span title="{clock(since)} UTC">{ago(since, page.now_ns())}</span>',
        times(alert.get("count")),
        escape(str(alert.get("acknowledged_by") or alert.get("muted") or "-")),
    ]
