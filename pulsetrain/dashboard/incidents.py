"""Incidents: what happened, who is the root, who only suffers, what to do, and which detectors are blind."""

from __future__ import annotations

from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.detectors import detectors
from pulsetrain.dashboard.models.postmortem import around_ns, during, file_name, postmortem
from pulsetrain.dashboard.models.states import DETECTOR_STATES, INCIDENT_STATES, SEVERITIES, pill
from pulsetrain.dashboard.models.text import ago, clock
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.stream.queries import views

_SHOWN = 10
_TIMELINE = 40
_VICTIMS = 24


def show() -> None:
    """The page."""
    page.live(partial(_body, page.chosen_time()))


def _body(time: TimeChoice) -> None:
    job = page.chosen_job()
    verdicts = page.source().job(job).get("detectors", [])
    _blind(verdicts)
    incidents = [i for i in page.source().incidents() if i.get("job") in (job, "")]
    if time.given:
        from_ns, to_ns = parts.times(page.source(), job, time)
        incidents = [i for i in incidents if during(i, from_ns, to_ns)]
        if not incidents:
            page.empty("No incident of this job is on record in this time.", "Choose another time.")
            return
    if not incidents:
        page.empty(
            "No incident is on record for this job.",
            "An incident joins findings that lie less than two minutes apart into one story.",
        )
        return
    for number, incident in enumerate(incidents[:_SHOWN]):
        _card(incident, unfolded=number == 0)
    if len(incidents) > _SHOWN:
        st.html(f'<div class="muted">The newest {_SHOWN} of {len(incidents)} incidents.</div>')


def _blind(verdicts: list[JsonObject]) -> None:
    """Say which detectors are blind, above everything else: one that sees nothing cannot find anything."""
    not_seeing = [d for d in detectors(verdicts) if d["state"] in ("blind", "failed")]
    if not_seeing:
        named = "; ".join(f"{d['name']}: {d['reason']}" for d in not_seeing[:6])
        st.html(f'<div class="stale" id="blind">{pill("blind", DETECTOR_STATES)} {escape(named)}</div>')


def _card(incident: JsonObject, *, unfolded: bool) -> None:
    since = int(incident["since_ns"])
    victims = list(incident["victims"])
    more = f" and {len(victims) - _VICTIMS} more" if len(victims) > _VICTIMS else ""
    with st.container(border=True):
        st.html(
            f'<div class="incident">{pill(str(incident["severity"]), SEVERITIES)} '
            f"{pill(str(incident['state']), INCIDENT_STATES)} <b>{escape(str(incident['root']))}</b>: "
            f"{escape(str(incident['summary']))} "
            f"<span class='muted'>since {clock(since)} UTC, {ago(since, page.now_ns())}</span>"
            f"<p><b>What to do:</b> {escape(str(incident['suggested_action']))}</p>"
            f"<p><b>Victims:</b> {escape(', '.join(victims[:_VICTIMS]) or 'none')}{more}</p></div>"
        )
        _download(incident)
        with st.expander("Hypotheses and timeline", expanded=unfolded):
            _hypotheses(incident)
            _timeline(incident)


def _download(incident: JsonObject) -> None:
    """The post-mortem as one file: findings and events in one order of time."""
    source, job = page.source(), str(incident["job"])
    from_ns, to_ns = around_ns(incident)
    st.download_button(
        "Post-mortem",
        data=lambda: postmortem(
            incident, source.rows(views.events, job, limit=1000, from_ns=from_ns, to_ns=to_ns)
        ),
        file_name=file_name(incident),
        mime="text/markdown",
        key=f"postmortem-{incident['id']}",
        on_click="ignore",
        help="One Markdown file for the report: facts, what to do, hypotheses, findings and events in order.",
    )


def _hypotheses(incident: JsonObject) -> None:
    page.table(
        ["root", "confidence", "kinds", "because"],
        [
            [
                escape(str(h["root"])),
                f"{float(h['confidence']):.0%}",
                escape(", ".join(h["kinds"])),
                escape("; ".join(h["because"])),
            ]
            for h in incident["hypotheses"]
        ],
        right=(1,),
    )


def _timeline(incident: JsonObject) -> None:
    page.table(
        ["time (UTC)", "severity", "kind", "about", "what was seen"],
        [
            [
                clock(int(line["ts_ns"])),
                pill(str(line["severity"]), SEVERITIES),
                escape(str(line["kind"])),
                escape(str(line["subject"])),
                escape(str(line["summary"])),
            ]
            for line in incident["timeline"][:_TIMELINE]
        ],
    )
