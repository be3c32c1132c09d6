"""Parts that several pages draw: logs, findings, counters, and ranks beside their cohort."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page
from pulsetrain.dashboard.models import explore as model
from pulsetrain.dashboard.models.states import LOG_SEVERITIES, SEVERITIES, pill
from pulsetrain.dashboard.models.steps import Window, sample
from pulsetrain.dashboard.models.steps import window as newest
from pulsetrain.dashboard.models.text import ago, clock
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.dashboard.source import Source
from pulsetrain.stream.queries import explore, views

_STEPS = 100


def times(source: Source, job: str, chosen: TimeChoice) -> tuple[int, int]:
    """The time range that a page is about, UTC nanoseconds. The last hour where none is chosen."""
    running = source.job(job).get("state", "past") not in ("past", "finished", "failed")
    last_ns = 0 if running else max((r["last_ns"] for r in source.rows(views.last_heard, job)), default=0)
    return chosen.bounds(running=running, last_ns=last_ns, now_ns=page.now_ns())


def within(source: Source, job: str, chosen: TimeChoice) -> dict[str, int]:
    """The chosen time range as the queries take it. Nothing where none is chosen: then they tell all."""
    if not chosen.given:
        return {}
    from_ns, to_ns = times(source, job, chosen)
    return {"from_ns": from_ns, "to_ns": to_ns}


def window(source: Source, job: str, chosen: TimeChoice, *, steps: str = "", last: int) -> Window | None:
    """The steps that a view is about: those typed, else those that began in the chosen time, else the newest.

    None where there are none. Raises `UsageError` for steps that cannot be read.
    """
    if steps or not chosen.given:
        return newest(source.rows(views.jobs), job, steps=steps, last=last)
    from_ns, to_ns = times(source, job, chosen)
    rows = source.rows(explore.steps_during, job, from_ns=from_ns, to_ns=to_ns)
    return next(
        (Window(first=r["first_step"], last=r["last_step"], newest=r["newest_step"]) for r in rows), None
    )


def logs(rows: Sequence[JsonObject], *, hint: str = "Choose a longer time.") -> None:
    """Lines, newest first. `hint` is what to try where there are none."""
    if not rows:
        page.empty("No line matches.", hint)
        return
    more = rows[0]["lines_in_all"] - len(rows)
    if more > 0:
        st.html(f'<div class="muted">The newest {len(rows):,} of {rows[0]["lines_in_all"]:,} lines.</div>')
    job = page.chosen_job()
    page.table(
        ["time (UTC)", "severity", "node", "rank", "source", "rule", "line"],
        [
            [
                clock(row["ts_ns"]),
                pill(row["severity"], LOG_SEVERITIES),
                node_link(job, row["node"]),
                rank_link(job, row["rank"]),
                escape(row["source"]),
                escape(row["rule"]) or "-",
                f"<code>{escape(row['message'][:600])}</code>",
            ]
            for row in rows
        ],
        right=(3,),
    )


def links(found: Iterable[tuple[str, str]]) -> None:
    """Links in one line, each as (words, address)."""
    words = " · ".join(f'<a href="{escape(href)}">{escape(word)}</a>' for word, href in found)
    st.html(f'<div class="links">{words}</div>')


def rank_link(job: str, rank: int) -> str:
    """A rank as a link to its page. "-" for none."""
    return f'<a href="{page.href("rank", job=job, rank=rank)}">{rank}</a>' if rank >= 0 else "-"


def node_link(job: str, node: str) -> str:
    """A node as a link to its page. "-" for none."""
    return f'<a href="{page.href("node", job=job, node=node)}">{escape(node)}</a>' if node else "-"


def last_seen(job: str, found: Iterable[tuple[str, str, int]]) -> list[str]:
    """When each finding was seen last: now, or when it was put on record last.

    `found` has the kind, subject and time of findings of `job`, the newest first. A finding is put on record
    anew only when it changes, and for each attempt. Only the newest of a kind and subject can be open.
    """
    open_now = {(row["kind"], f"{row['subject_type']} {row['subject']}") for row in page.findings(job)}
    cells = []
    for kind, subject, ts_ns in found:
        words = "still open" if (kind, subject) in open_now else ago(ts_ns, page.now_ns())
        open_now.discard((kind, subject))
        cells.append(f'<span title="on record {clock(ts_ns)} UTC">{words}</span>')
    return cells


def findings(rows: Sequence[JsonObject]) -> None:
    """Findings, the newest first."""
    if not rows:
        st.html('<div class="muted">No finding is on record about it.</div>')
        return
    shown = [(row, f"{row['subject_type']} {row['subject']}") for row in rows[:20]]
    seen = last_seen(page.chosen_job(), [(row["kind"], about, row["ts_ns"]) for row, about in shown])
    page.table(
        ["severity", "finding", "about", "what was seen", "sure", "last seen"],
        [
            [
                pill(row["severity"], SEVERITIES),
                escape(row["kind"]),
                escape(about),
                escape(row["summary"]),
                f"{row['confidence']:.0%}",
                when,
            ]
            for (row, about), when in zip(shown, seen, strict=True)
        ],
        right=(4, 5),
    )


def work_rows(
    source: Source, job: str, ranks: Sequence[int], time: TimeChoice
) -> Sequence[JsonObject] | None:
    """The working time of ranks beside their stage, in the last steps or in those that began in a time.

    None where there are no steps.
    """
    chosen = window(source, job, time, last=_STEPS)
    if chosen is None:
        return None
    return source.rows(
        explore.work_beside_cohort, job, ranks=tuple(ranks), first=chosen.first, last=chosen.last,
        most_steps=min(sample(source.rows(views.jobs), job), _STEPS),
    )  # fmt: skip


def beside_cohort(job: str, ranks: Sequence[int], time: TimeChoice) -> None:
    """The working time of ranks, beside the other ranks of their stage. See `work_rows`."""
    rows = work_rows(page.source(), job, ranks, time)
    if rows is None:
        page.empty(no_steps(time))
        return
    st.html(f"<div><b>{escape(model.beside_cohort(rows))}</b></div>")
    if rows:
        page.chart(
            model.work_chart(rows, page.theme()), key="work", alt="Working time beside the cohort, by step"
        )


def counters(rows: Sequence[JsonObject]) -> None:
    """The newest value of each counter of a node."""
    if not rows:
        page.empty("No data: no counter of this node is on record in this time.")
        return
    page.table(
        ["counter", "device", "value", "at"],
        [
            [
                escape(row["name"]),
                escape(row["device"]) or "-",
                model.number(row["name"], row["value"]),
                ago(row["ts_ns"], page.now_ns()),
            ]
            for row in rows
        ],
        right=(2, 3),
    )


def no_steps(time: TimeChoice) -> str:
    """What is said where a job has no steps, or none in the chosen time."""
    if time.given:
        return "No data: no step of this job began in this time."
    return "No data: no step of this job is on record."


def facts(cells: dict[str, str]) -> None:
    """Facts as a row of figures. Values are ready HTML."""
    drawn = "".join(f"<div><span>{escape(k)}</span><b>{v}</b></div>" for k, v in cells.items())
    st.html(f'<div class="figures">{drawn}</div>')
