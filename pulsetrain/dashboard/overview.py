"""Overview: how each job is, since when, what proves it, and the progress of its steps."""

from __future__ import annotations

from html import escape

import streamlit as st

from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.overview import JobLine, evidence, live_facts
from pulsetrain.dashboard.models.progress import MARKER_KINDS, headline, progress_figure
from pulsetrain.dashboard.models.states import JOB_STATES, SEVERITIES, look, pill
from pulsetrain.dashboard.models.text import ago, clock
from pulsetrain.stream.queries import views

_SLOWLY_S = 4.0


def show() -> None:
    """The page."""
    page.live(_verdicts)
    st.segmented_control(
        "Along", ["step", "time"], default="step", required=True, key="axis", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    page.live(_progress, every_s=_SLOWLY_S)
    page.live(_evidence, every_s=_SLOWLY_S)


def _verdicts() -> None:
    lines = page.lines()
    if not lines:
        page.empty(
            "No data: no agent has connected to this hub, and its store holds no steps.",
            "Start a job with `pulsetrain run script.py`, or load recordings with `pulsetrain import DIR`.",
        )
        return
    job = page.chosen_job()
    for line in (each for each in lines if each.job == job):
        _verdict(line)
    others = [line for line in lines if line.job != job]
    if others:
        page.table(["job", "state", "verdict", "step"], [_row(line) for line in others[:50]], right=(3,))


def _verdict(line: JobLine) -> None:
    state = look(line.state, JOB_STATES)
    rows = page.source().rows(views.curve, line.job)
    facts = headline(rows) | live_facts(page.source().job(line.job))
    cells = "".join(f"<div><span>{escape(k)}</span><b>{escape(v)}</b></div>" for k, v in facts.items())
    since = "since when is not known"
    if line.since_ns:
        since = f"since {clock(line.since_ns)} UTC, {ago(line.since_ns, page.now_ns())}"
    links = "".join(
        f' · <a href="{page.href(name, job=line.job)}">{name}</a>'
        for name in ("topology", "heatmap", "recovery")
    )
    st.html(
        f'<div class="verdict" data-state="{line.state}" style="--c:{state.colour}">'
        f"<div>{pill(line.state, JOB_STATES)}</div>"
        f'<div style="flex:1"><h2 id="verdict">{escape(line.sentence)}</h2>'
        f'<div class="muted">{escape(line.job)} · {since}{links}</div></div>'
        f'</div><div class="figures">{cells}</div>'
    )


def _row(line: JobLine) -> list[str]:
    return [
        f'<a href="{page.href("overview", job=line.job)}">{escape(line.job)}</a>',
        pill(line.state, JOB_STATES),
        escape(line.sentence),
        f"{line.step:,}",
    ]


def _progress() -> None:
    job = page.chosen_job()
    rows = page.source().rows(views.curve, job) if job else []
    if not rows:
        page.empty("No data: no completed step of this job is on record.")
        return
    events = page.source().rows(views.events, job, MARKER_KINDS)
    figure = progress_figure(rows, events, page.theme(), axis=str(st.query_params.get("axis", "step")))
    page.chart(figure, key="progress", alt="Loss, step time and tokens per second of the job")


def _evidence() -> None:
    job = page.chosen_job()
    rows = page.source().rows(views.findings, job) if job else []
    last = page.source().job(job).get("step", -1)
    items = evidence(rows, job=job, last_step=int(last))
    if not items:
        st.html('<div class="muted">No finding on record for this job.</div>')
        return
    page.table(
        ["severity", "finding", "about", "what was seen", "confidence", "last seen"],
        [
            [
                pill(e.severity, SEVERITIES),
                escape(e.kind),
                f'<a href="{escape(e.href)}">{escape(e.subject)}</a>',
                escape(e.summary),
                f"{e.confidence:.2f}",
                f'<span title="{clock(e.ts_ns)} UTC">{ago(e.ts_ns, page.now_ns())}</span>',
            ]
            for e in items[:12]
        ],
        right=(4, 5),
    )
