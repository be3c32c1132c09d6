"""Overview: how each job is, since when, what proves it, and the progress of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import decisions, page, parts
from pulsetrain.dashboard.models.answer import CONTROLLER_KINDS, MOST_EVENTS, answer
from pulsetrain.dashboard.models.overview import JobLine, evidence, live_facts
from pulsetrain.dashboard.models.progress import MARKER_KINDS, headline, progress_chart
from pulsetrain.dashboard.models.states import JOB_STATES, SEVERITIES, look, pill
from pulsetrain.dashboard.models.text import ago, clock
from pulsetrain.dashboard.models.times import TimeChoice, read
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import views

_SLOWLY_S = 4.0


def show() -> None:
    """The page."""
    page.live(_verdicts)
    page.live(decisions.show)
    st.segmented_control(
        "Along", ["step", "time"], default="step", required=True, key="axis", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    page.live(partial(_progress, page.chosen_time()), every_s=_SLOWLY_S)
    page.live(_evidence, every_s=_SLOWLY_S)


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""
    time = read(asked)
    return (
        *((partial(_history, source, job, time),) if time.given else ()),
        source.incidents,
        partial(source.rows, views.events, job, CONTROLLER_KINDS, limit=MOST_EVENTS),
        partial(source.rows, views.curve, job),
        partial(source.rows, views.events, job, MARKER_KINDS),
        partial(source.rows, views.findings, job),
    )


def _verdicts() -> None:
    lines = page.lines()
    if not lines:
        page.empty(
            "No data: no agent has connected to this hub, and its store holds no steps.",
            "Start a job with `pulsetrain run script.py`, or load recordings with `pulsetrain import DIR`.",
        )
        return
    job = page.chosen_job()
    if job not in {line.job for line in lines}:
        page.empty(page.unknown(job))
    for line in (each for each in lines if each.job == job):
        _verdict(line)
    others = [line for line in lines if line.job != job]
    if others:
        page.table(["job", "state", "verdict", "step"], [_row(line) for line in others[:50]], right=(3,))


def _verdict(line: JobLine) -> None:
    """What is wrong, where, since when, how sure, what is done and what to do, with one click to evidence."""
    state, source, seen = look(line.state, JOB_STATES), page.source(), page.snapshot()
    job = seen.job(line.job) or {"job": line.job, "state": "past"}
    found = answer(
        job,
        source.incidents(),
        source.rows(views.events, line.job, CONTROLLER_KINDS, limit=MOST_EVENTS),
        observe_only=bool(seen.status.get("hub", {}).get("observe_only")),
        now_ns=page.now_ns(),
    )
    sure = "" if found.confidence is None else f" · {found.confidence:.0%} sure"
    links = " · ".join(
        f'<a href="{escape(page.with_time(href))}">{escape(words)}</a>' for words, href in found.links
    )
    st.html(
        f'<div class="verdict" data-state="{line.state}" style="--c:{state.colour}">'
        f"<div>{pill(line.state, JOB_STATES)}</div>"
        f'<div style="flex:1"><h2 id="verdict">{escape(line.sentence)}</h2>'
        f'<div class="muted">{escape(line.job)} · {_since(line)}{sure}</div>'
        f"{page.named(line.job)}"
        f'<dl class="answer"><dt>Controller</dt><dd id="controller">{escape(found.controller)}</dd>'
        f'<dt>What to do</dt><dd id="to-do">{escape(found.to_do)}</dd>'
        f'<dt>Evidence</dt><dd id="links">{links}</dd></dl>'
        f'</div></div><div class="figures">{_figures(line.job)}</div>'
    )


def _since(line: JobLine) -> str:
    if not line.since_ns:
        return "since when is not known"
    return f"since {clock(line.since_ns)} UTC, {ago(line.since_ns, page.now_ns())}"


def _figures(job: str) -> str:
    facts = headline(page.source().rows(views.curve, job)) | live_facts(page.snapshot().live_job(job))
    return "".join(f"<div><span>{escape(k)}</span><b>{escape(v)}</b></div>" for k, v in facts.items())


def _row(line: JobLine) -> list[str]:
    return [
        f'<a href="{page.href("overview", job=line.job)}">{escape(line.job)}</a>',
        pill(line.state, JOB_STATES),
        escape(line.sentence),
        f"{line.step:,}" if line.step >= 0 else "-",
    ]


def _history(source: Source, job: str, time: TimeChoice) -> tuple[Sequence[JsonObject], Sequence[JsonObject]]:
    """The steps of the chosen time, all without a choice, and what interrupted them."""
    within = parts.within(source, job, time)
    curve = source.rows(views.curve, job, **within)
    return curve, source.rows(views.events, job, MARKER_KINDS, **within)


def _progress(time: TimeChoice) -> None:
    job = page.chosen_job()
    rows, events = _history(page.source(), job, time) if job else ([], [])
    if not rows:
        when = "in this time" if time.given else "on record"
        page.empty(f"No data: no completed step of this job is {when}.")
        return
    drawn = progress_chart(rows, events, page.theme(), axis=str(st.query_params.get("axis", "step")))
    page.chart(drawn, key="progress", alt="Loss, step time and tokens per second of the job")


def _evidence() -> None:
    job = page.chosen_job()
    rows = page.source().rows(views.findings, job) if job else []
    items = evidence(rows, job=job)[:12]
    if not items:
        st.html('<div class="muted">No finding on record for this job.</div>')
        return
    seen = parts.last_seen(job, [(e.kind, e.subject, e.ts_ns) for e in items])
    page.table(
        ["severity", "finding", "about", "what was seen", "sure", "last seen"],
        [
            [
                pill(e.severity, SEVERITIES),
                escape(e.kind),
                f'<a href="{escape(page.with_time(e.href))}">{escape(e.subject)}</a>',
                escape(e.summary),
                f"{e.confidence:.0%}",
                when,
            ]
            for e, when in zip(items, seen, strict=True)
        ],
        right=(4, 5),
    )
