"""Recoveries, and where the time of each went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import STAGE_COLOURS, Theme, frame
from pulsetrain.dashboard.models.text import clock, duration


@dataclass(frozen=True, kw_only=True)
class RecoveryLine:
    """One recovery. `stages_ns` is in the order of the stages."""

    ts_ns: int
    attempt: int
    cause: str
    culprit: str
    stages_ns: Mapping[str, int]
    total_ns: int
    resumed_step: int
    lost_steps: int
    actor: str


def recoveries(events: Sequence[JsonObject]) -> list[RecoveryLine]:
    """Return the `recovery` events, newest first.

    One whose detail is not JSON keeps its time and says "unreadable".
    """
    return [_recovery(row) for row in events]


def _recovery(row: JsonObject) -> RecoveryLine:
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
        f"{line.cause}: {line.culprit} · {clock(line.ts_ns)[-8:]} · #{len(lines) - index}"
        for index, line in enumerate(lines)
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
