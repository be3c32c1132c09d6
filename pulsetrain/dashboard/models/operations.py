"""Alerts, nodes, evictions and recoveries, as rows that a page prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

from pulsetrain.dashboard.models.charts import STAGE_COLOURS, Theme, frame
from pulsetrain.dashboard.models.heatmap import natural
from pulsetrain.dashboard.models.states import DETECTOR_STATES, NODE_STATES, SEVERITIES, look
from pulsetrain.dashboard.models.text import clock, duration, fold, size, thousands

Row = Mapping[str, Any]


def ordered_alerts(alerts: Sequence[Row]) -> list[Row]:
    """Firing and not acknowledged first, then by severity, then the newest."""
    return sorted(
        alerts,
        key=lambda a: (
            a.get("state") == "resolved",
            bool(a.get("acknowledged_by") or a.get("muted")),
            -look(str(a.get("severity", "")), SEVERITIES).urgency,
            -moment_ns(a.get("since_ns", a.get("since"))),
        ),
    )


def open_alerts(alerts: Sequence[Row]) -> int:
    """How many alerts need a person."""
    return sum(needs_a_person(alert) for alert in alerts)


def needs_a_person(alert: Row) -> bool:
    """It fires, is more than information, and nobody has acknowledged or silenced it."""
    return (
        alert.get("state") != "resolved"
        and alert.get("severity") != "info"
        and not alert.get("acknowledged_by")
        and not alert.get("muted")
    )


def silence_of(alert: Row) -> dict[str, str]:
    """Matchers that cover this alert and no other: its job, kind and subject."""
    fields = ("job", "kind", "subject_type", "subject")
    return {name: str(alert[name]) for name in fields if alert.get(name)}


def detectors(verdicts: Sequence[Row]) -> list[dict[str, str]]:
    """What each detector sees, the most urgent first: name, state (a key of `DETECTOR_STATES`), reason."""
    rows: dict[str, dict[str, str]] = {}
    for verdict in verdicts:
        state = str(verdict.get("state", ""))
        reason = verdict.get("summary") or verdict.get("reason") or verdict.get("error") or ""
        row = {"name": str(verdict.get("analyzer", "?")), "state": state, "reason": str(reason)}
        before = rows.get(row["name"])
        if before is None or _detector_urgency(row) > _detector_urgency(before):
            rows[row["name"]] = row
    return sorted(rows.values(), key=lambda r: (-_detector_urgency(r), r["name"]))


def _detector_urgency(row: Row) -> int:
    return look(row["state"], DETECTOR_STATES).urgency


def about(alert: Row) -> str:
    """What an alert is about: "rank 5"; the subject alone where its type says nothing more."""
    kind, subject = str(alert.get("subject_type") or ""), str(alert.get("subject", ""))
    return subject if kind in ("", "job") or subject.startswith(kind) else f"{kind} {subject}"


def times(count: Any) -> str:
    """How often, in words.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count in (None, 0, 1) else f"{count:,} times"


def moment_ns(value: Any) -> int:
    """A time from the hub's JSON as UTC nanoseconds: a number of nanoseconds or seconds, or an ISO text;
    else 0."""
    if isinstance(value, int | float):
        return int(value) if value > 1e15 else int(value * 1e9)
    try:
        return int(_parsed(str(value)).timestamp() * 1e9)
    except ValueError:
        return 0


def _parsed(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def ordered_nodes(nodes: Sequence[Row], *, job: str, find: str = "") -> list[Row]:
    """The nodes of a job (a standby belongs to every job), the most urgent first, then in natural order of
    name."""
    chosen = [
        n
        for n in nodes
        if (not job or n.get("job") in (job, "", None))
        and find.strip().lower() in f"{n.get('node')} {n.get('address')}".lower()
    ]
    return sorted(
        chosen,
        key=lambda n: (-look(str(n.get("state", "")), NODE_STATES).urgency, natural(str(n["node"]))),
    )


def ranks_text(ranks: Any) -> str:
    """A node's ranks as ranges, "-" for none."""
    return fold(int(r) for r in ranks) or "-" if ranks else "-"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an eviction would cost, in sentences; `allowed` is the hub's answer."""

    allowed: bool
    sentences: tuple[str, ...]


def plan(answer: Row) -> Plan:
    """The hub's dry run in words."""
    node, standby = answer.get("node", "?"), answer.get("standby")
    ranks = ranks_text(answer.get("ranks"))
    if ranks == "-":
        return Plan(
            allowed=bool(answer.get("allowed", False)),
            sentences=(f"{node} runs no ranks: the job does not stop.", *_refusal(answer)),
        )
    lines = [
        f"{node} runs ranks {ranks} of {answer['job']}.",
        f"Its place goes to {standby}." if standby else "No standby is free: the job would wait for a node.",
    ]
    step, lost = answer.get("resume_step"), answer.get("lost_steps")
    if isinstance(step, int) and step >= 0:
        lines.append(
            f"The job resumes from step {step}; {lost} {'step is' if lost == 1 else 'steps are'} done again."
        )
    else:
        lines.append("No checkpoint is held by every rank: the job would start from its first step.")
    if answer.get("expected_s") is not None:
        lines.append(f"Expected pause: {duration(float(answer['expected_s']) * 1e9)}.")
    return Plan(allowed=bool(answer.get("allowed", False)), sentences=(*lines, *_refusal(answer)))


def _refusal(answer: Row) -> list[str]:
    if answer.get("allowed", False):
        return []
    return [f"The hub refuses: {answer.get('why_not') or 'no reason given'}."]


@dataclass(frozen=True, kw_only=True)
class RecoveryLine:
    """One recovery; `stages_ns` in the order of the stages."""

    ts_ns: int
    attempt: int
    cause: str
    culprit: str
    stages_ns: Mapping[str, int]
    total_ns: int
    resumed_step: int
    lost_steps: int
    actor: str


def recoveries(events: Sequence[Row]) -> list[RecoveryLine]:
    """The `recovery` events, newest first; one whose detail is not JSON keeps its time and says
    "unreadable"."""
    return [_recovery(row) for row in events]


def _recovery(row: Row) -> RecoveryLine:
    try:
        detail = json.loads(row["detail"])
    except ValueError:
        detail = {"cause": "unreadable"}
    stages = {stage: int(detail.get("stages_ns", {}).get(stage, 0)) for stage in STAGE_COLOURS}
    return RecoveryLine(
        ts_ns=row["ts_ns"],
        attempt=row["attempt"],
        cause=str(detail.get("cause", "unknown")),
        culprit=str(detail.get("culprit") or row["node"] or "-"),
        stages_ns=stages,
        total_ns=int(detail.get("total_ns") or sum(stages.values())),
        resumed_step=int(detail.get("resumed_step", -1)),
        lost_steps=int(detail.get("lost_steps", 0)),
        actor=str(detail.get("actor") or row["actor"]),
    )


def recovery_figure(lines: Sequence[RecoveryLine], theme: Theme) -> go.Figure:
    """One bar for each recovery, newest on top, stacked by stage."""
    chart = frame(theme, height=max(200, 100 + 38 * len(lines)), barmode="stack")
    names = [
        f"{line.cause}: {line.culprit} · {clock(line.ts_ns)[-8:]} · #{len(lines) - place}"
        for place, line in enumerate(lines)
    ]
    for stage, colour in STAGE_COLOURS.items():
        seconds = [line.stages_ns[stage] / 1e9 for line in lines]
        chart.add_bar(
            orientation="h",
            x=seconds,
            y=names,
            name=stage.replace("_", " "),
            marker={"color": colour},
            text=[duration(s * 1e9) if s else "" for s in seconds],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": "#ffffff", "size": 11},
            hovertemplate=f"{stage.replace('_', ' ')} %{{text}}<extra></extra>",
        )
    chart.update_xaxes(title_text="seconds from the fault to the next completed step")
    chart.update_yaxes(autorange="reversed", type="category")
    chart.update_layout(legend={"traceorder": "normal"})
    return chart


def checkpoint_lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One line a checkpointed step: for each stage how many ranks did it and the longest time; newest
    first."""
    lines: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(
            (row["attempt"], row["step"]),
            {"attempt": row["attempt"], "step": row["step"], "bytes": 0, "stages": {}, "ts_ns": 0},
        )
        line["stages"][f"{row['stage']} ({row['tier']})"] = (row["ranks"], row["longest_ns"])
        line["bytes"] = max(line["bytes"], row["bytes"])
        line["ts_ns"] = max(line["ts_ns"], row["ts_ns"])
    return [lines[key] for key in sorted(lines, reverse=True)]


def can_be_evicted(node: Row) -> bool:
    """Whether the node is still there to be evicted."""
    return node.get("state") not in ("evicted", "left", "lost")


def gauge_text(name: str, value: Any) -> str:
    """An agent's gauge by the unit in its name; "-" where the agent does not send it."""
    if not isinstance(value, int | float):
        return "-"
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_ratio"):
        return f"{100 * value:.1f} %"
    if name.endswith("_s"):
        return duration(value * 1e9)
    return thousands(value) if float(value).is_integer() else f"{value:.3g}"


def hub_facts(hub: Row, now_ns: int) -> dict[str, str]:
    """What the hub says about itself; a count of failures is shown also when it is zero."""
    started = hub.get("started_ns")
    return {
        "hub": str(hub.get("version", "-")),
        "running for": duration(now_ns - started) if started else "-",
        "failed looks": thousands(hub.get("watch_failures")),
        "rows not written": thousands(hub.get("unwritten_rows")),
        "process": str(hub.get("pid", "-")),
    }


def heard_text(age_s: Any) -> str:
    """How long ago a node was heard, from seconds; "never" where it never was."""
    if not isinstance(age_s, int | float):
        return "never"
    return f"{age_s:.1f} s ago" if age_s < 60 else f"{duration(age_s * 1e9)} ago"
