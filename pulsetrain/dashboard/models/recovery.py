"""Recoveries, and where the time of each went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import STAGE_COLOURS, Chart, Theme, axis, chart
from pulsetrain.dashboard.models.text import clock, duration

_LABEL_SHARE = 0.04  # of the longest recovery: what is shorter has no room for words


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


def recovery_chart(lines: Sequence[RecoveryLine], theme: Theme) -> Chart:
    """One bar for each recovery, newest on top, stacked by stage."""
    names = [
        f"{line.cause}: {line.culprit} · {clock(line.ts_ns)[-8:]} · #{len(lines) - index}"
        for index, line in enumerate(lines)
    ]
    return chart(
        theme,
        height=max(200, 100 + 38 * len(lines)),
        tooltip={"trigger": "item", "formatter": "{a} {@[2]}"},
        legend={"left": 0, "top": 0, "textStyle": {"color": theme.text, "fontSize": 12}},
        grid={"left": 8, "right": 16, "top": 36, "bottom": 28, "containLabel": True},
        xAxis=axis(theme, "value", name="seconds from the fault to the next completed step", nameGap=26),
        yAxis=axis(theme, "category", data=names, inverse=True, splitLine={"show": False}),
        series=[_stage(stage, colour, names, lines) for stage, colour in STAGE_COLOURS.items()],
    )


def _stage(stage: str, colour: str, names: Sequence[str], lines: Sequence[RecoveryLine]) -> JsonObject:
    took = [line.stages_ns[stage] for line in lines]
    least_ns = _LABEL_SHARE * max(sum(line.stages_ns.values()) for line in lines)
    return {
        "type": "bar",
        "stack": "stages",
        "name": stage.replace("_", " "),
        "data": [
            {"value": [ns / 1e9, name, duration(ns)], "label": {"show": ns >= least_ns > 0}}
            for ns, name in zip(took, names, strict=True)
        ],
        "itemStyle": {"color": colour},
        "label": {"color": "#ffffff", "fontSize": 11, "formatter": "{@[2]}"},
        "barCategoryGap": "25%",
    }
