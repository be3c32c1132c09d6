"""One line of truth for each job: state, sentence, since when, what proves it; and the course of its
steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go

from pulsetrain.dashboard.models.charts import Theme, frame
from pulsetrain.dashboard.models.states import job_state
from pulsetrain.dashboard.models.text import clock, duration

Row = Mapping[str, Any]
STALE_AFTER_S = 10.0
_MARKERS = {
    "attempt_started": ("restart", "#0072B2"),
    "evict": ("evicted", "#D55E00"),
    "node_lost": ("node lost", "#A3195B"),
    "hang": ("hang", "#D55E00"),
    "job_finished": ("finished", "#4C7A9B"),
}
MARKER_KINDS = tuple(_MARKERS)


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """What the overview says about one job. `since_ns` is 0 where nobody knows."""

    job: str
    state: str
    sentence: str
    since_ns: int
    attempt: int
    step: int


def job_lines(live: Sequence[Row], stored: Sequence[Row]) -> list[JobLine]:
    """The jobs that the hub runs, then those that are only on record, which have no live state: "no data"."""
    lines = [_live_line(job) for job in live]
    known = {line.job for line in lines}
    return lines + [_stored_line(row) for row in stored if row["job"] not in known]


def stale(lines: Sequence[JobLine], age_s: float) -> list[JobLine]:
    """The lines as they may still be shown `age_s` after the hub last answered: what is old is no data."""
    if age_s <= STALE_AFTER_S:
        return list(lines)
    return [
        replace(
            line, state="no_data", sentence=f"No data for {age_s:.0f} s. The hub last said: {line.sentence}"
        )
        for line in lines
    ]


def _live_line(job: Row) -> JobLine:
    verdict = job.get("verdict") or {}
    state = job_state(job)
    return JobLine(
        job=str(job["job"]),
        state=state,
        sentence=str(verdict.get("sentence") or "No verdict yet: the hub has not judged this job."),
        since_ns=int(verdict.get("since_ns") or 0),
        attempt=int(job.get("attempt", -1)),
        step=int(job.get("step", -1)),
    )


def _stored_line(row: Row) -> JobLine:
    return JobLine(
        job=str(row["job"]),
        state="no_data",
        sentence="No data: no agent of this job is connected. "
        f"Its last step on record began {clock(row['last_ns'])} UTC.",
        since_ns=int(row["last_ns"]),
        attempt=int(row["attempts"]) - 1,
        step=int(row["last_step"]),
    )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One finding with the address of the view that shows it."""

    severity: str
    kind: str
    subject: str
    summary: str
    confidence: float
    ts_ns: int
    times: int
    href: str


def evidence(findings: Sequence[Row], *, job: str, last_step: int) -> list[Evidence]:
    """The newest findings, the latest first, each with a link to what proves it."""
    return [
        Evidence(
            severity=row["severity"],
            kind=row["kind"],
            subject=f"{row['subject_type']} {row['subject']}",
            summary=row["summary"],
            confidence=float(row["confidence"]),
            ts_ns=row["ts_ns"],
            times=row["times"],
            href=_href(job, row, last_step),
        )
        for row in findings
    ]


def _href(job: str, row: Row, last_step: int) -> str:
    """Where to look: a rank's timeline, a node's row in the heatmap, else the topology."""
    if row["subject_type"] == "rank" and str(row["subject"]).isdigit():
        steps = f"{max(0, last_step - 3)}:{last_step}"
        return "timeline?" + urlencode({"job": job, "ranks": row["subject"], "steps": steps})
    page = "heatmap" if row["subject_type"] == "node" else "topology"
    return f"{page}?" + urlencode({"job": job, "find": row["subject"]})


def marks(events: Sequence[Row]) -> list[tuple[int, str, str]]:
    """(time, label, colour) of what broke or mended the course, oldest first; the first attempt is no
    mark."""
    found = [
        (row["ts_ns"], _label(row), _MARKERS[row["kind"]][1])
        for row in events
        if row["kind"] in _MARKERS and not (row["kind"] == "attempt_started" and row["attempt"] <= 0)
    ]
    return sorted(found)


def _label(row: Row) -> str:
    word = _MARKERS[row["kind"]][0]
    return f"{word} {row['node']}".strip() if row["kind"] != "attempt_started" else word


_PANELS = (
    ("loss", "loss", "#3B7DB8"),
    ("step_ms", "step time, ms", "#D55E00"),
    ("tokens_per_s", "tokens/s", "#009E73"),
)


def course(rows: Sequence[Row], events: Sequence[Row], theme: Theme, *, axis: str) -> go.Figure:
    """Loss, step time and throughput over steps (`axis` "step") or time ("time"), with restarts and
    evictions.

    Attempts are separate lines, so that steps done twice do not draw a zigzag; a NaN loss leaves a gap.
    """
    figure = frame(theme, height=440, hovermode="x unified", showlegend=False)
    for index, (_, title, colour) in enumerate(_PANELS):
        _add_panel(figure, theme, index, title, colour)
    for attempt in sorted({row["attempt"] for row in rows}):
        _add_lines(figure, [row for row in rows if row["attempt"] == attempt], axis)
    places: dict[float, list[tuple[str, str]]] = {}
    for ts_ns, label, colour in marks(events):
        places.setdefault(_place(rows, ts_ns, axis), []).append((label, colour))
    for at, found in places.items():
        _add_mark(figure, at, ", ".join(label for label, _ in found), found[0][1], theme)
    figure.update_xaxes(
        anchor="y3",
        type="date" if axis == "time" else "linear",
        title_text="UTC" if axis == "time" else "step",
    )
    return figure


def _add_panel(figure: go.Figure, theme: Theme, index: int, title: str, colour: str) -> None:
    """One of three stacked panels, its title inside so that three scales of any width stay aligned."""
    top = 1 - index * 0.345
    figure.update_layout(
        {
            f"yaxis{index + 1 if index else ''}": {
                "domain": [top - 0.29, top],
                "anchor": "x",
                "gridcolor": theme.grid,
                "zerolinecolor": theme.grid,
                "tickfont": {"color": theme.muted, "size": 12},
                "automargin": True,
                "nticks": 4,
                "rangemode": "normal" if index == 0 else "tozero",
            }
        }
    )
    figure.add_annotation(
        text=f"<b>{title}</b>", x=0.004, y=top, xref="paper", yref="paper", showarrow=False, xanchor="left",
        yanchor="bottom", font={"color": colour, "size": 12},
    )  # fmt: skip


def _add_lines(figure: go.Figure, rows: Sequence[Row], axis: str) -> None:
    along = [row["start_ns"] / 1e6 if axis == "time" else row["step"] for row in rows]
    for index, (name, title, colour) in enumerate(_PANELS):
        values = [row["step_ns"] / 1e6 if name == "step_ms" else row[name] for row in rows]
        figure.add_scatter(
            x=along,
            y=values,
            yaxis=f"y{index + 1 if index else ''}",
            mode="lines" if len(rows) > 1 else "markers",
            line={"color": colour, "width": 1.6},
            marker={"size": 5, "color": colour},
            name=title,
            hovertemplate="%{y:.5g}",
        )


def _place(rows: Sequence[Row], ts_ns: int, axis: str) -> float:
    """Where on the x axis a moment lies: its time in ms, or the last step that had begun by then."""
    if axis == "time":
        return ts_ns / 1e6
    begun = [row["step"] for row in rows if row["start_ns"] <= ts_ns]
    return float(begun[-1] if begun else 0)


def _add_mark(figure: go.Figure, at: float, label: str, colour: str, theme: Theme) -> None:
    figure.add_shape(
        type="line",
        xref="x",
        yref="paper",
        x0=at,
        x1=at,
        y0=0,
        y1=1,
        line={"color": colour, "width": 1, "dash": "dot"},
    )
    figure.add_annotation(
        x=at, xref="x", y=1, yref="paper", text=label, showarrow=False, textangle=-90, xanchor="right",
        yanchor="top", font={"size": 11, "color": theme.muted},
    )  # fmt: skip


def headline(rows: Sequence[Row]) -> dict[str, str]:
    """The last point of the course in words: loss, step time, throughput, step; "-" for what is not known."""
    if not rows:
        return {"loss": "-", "step time": "-", "tokens/s": "-", "step": "-"}
    last = rows[-1]
    loss = last["loss"]
    return {
        "loss": "-" if loss is None else f"{loss:.4f}",
        "step time": duration(last["step_ns"]),
        "tokens/s": f"{last['tokens_per_s']:,.0f}" if last["tokens_per_s"] else "-",
        "step": f"{last['step']:,}",
    }


def live_facts(job: Row) -> dict[str, str]:
    """What the hub knows beside the store: attempt, step, ranks and nodes; nothing for a job it does not
    run."""
    if not job:
        return {}
    active = sum(node.get("state") == "active" for node in job.get("nodes", []))
    spare = sum(node.get("state") == "standby" for node in job.get("nodes", []))
    step = {"step": f"{job['step']:,}"} if job.get("step", -1) >= 0 else {}
    return (
        step
        | _mfu(job)
        | {
            "attempt": str(job["attempt"]) if job.get("attempt", -1) >= 0 else "-",
            "ranks": f"{job.get('world_size', 0):,}",
            "nodes": f"{active:,} + {spare:,} standby",
            "recoveries": f"{len(job.get('recoveries', [])):,}",
        }
    )


def _mfu(job: Row) -> dict[str, str]:
    """The model FLOPs utilisation over the last steps, where the hub knows the device."""
    told = (d.get("numbers", {}) for d in job.get("detectors", []) if d.get("analyzer") == "mfu")
    return next(({"MFU": f"{n['mfu']:.1%}"} for n in told if "mfu" in n), {})
