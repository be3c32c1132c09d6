"""What the pages Logs, Metrics, Events, Rank and Node show: pure functions over rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import Chart, Theme, axis, chart, mark_lines, zoom
from pulsetrain.dashboard.models.step_marks import StepMark
from pulsetrain.dashboard.models.text import clock, duration, size, thousands

SEVERE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all": (),
        "warnings and worse": ("warning", "error", "critical"),
        "errors": ("error", "critical"),
    }
)
_MOMENT_NS = 10**17  # three years: what is longer is a moment
_METRIC_PX, _LEFT, _BOTTOM = 380, 84, 46
_FEW_STEPS = 30  # of so few each is a point
_WHOLE = 1000  # from here on a number has no fraction
_LINES = ("#3B7DB8", "#E1A034", "#5BA884", "#B07AA1", "#7A5BB5", "#8C6D46", "#2E8B9A", "#9AA0A8")


def number(name: str, value: float) -> str:
    """A number by the unit in its name. Others get four significant digits.

    >>> number("net_rx_bytes", 2048.0), number("cpu_ratio", 0.5), number("procs", 3.0)
    ('2.00 KiB', '50.0 %', '3')
    >>> number("silent_s", 12.345678901), number("bits_per_s", 123456.7), number("lost_gpu_s", 12.345678901)
    ('12.3 s', '123,457', '12.35')
    """
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_ratio"):
        return f"{100 * value:.1f} %"
    if name.endswith("_ns"):
        return duration(value)
    if _is_seconds(name):
        return duration(value * 1e9) if value else "0 s"
    if float(value).is_integer() or abs(value) >= _WHOLE:
        return thousands(value)
    return f"{value:.4g}"


def _is_seconds(name: str) -> bool:
    """Whether a name is of a time in seconds, and not of a rate or of devices times seconds.

    >>> [_is_seconds(name) for name in ("silent_s", "bytes_per_s", "lost_gpu_s")]
    [True, False, False]
    """
    return name.endswith("_s") and not name.endswith(("_per_s", "_gpu_s", "_device_s"))


def detail_text(detail: str, *, most: int = 300) -> str:
    """An event's detail as "name: value" pairs, rounded as people read it, without lists of any length.

    >>> detail_text('{"reason": "lost", "ranks": [1, 2], "total_ns": 8059109615}')
    'reason: lost, ranks: [1, 2], total: 8.06 s'
    """
    try:
        found = json.loads(detail or "{}")
    except ValueError:
        return detail[:most]
    if not isinstance(found, dict):
        return str(found)[:most]
    text = ", ".join(f"{_label(name)}: {_told(name, value)}" for name, value in found.items())
    return text if len(text) <= most else f"{text[:most]} ..."


def _label(name: str) -> str:
    """The name of a value, without the unit that the value is told with."""
    for unit in ("_ns", "_bytes", "_ratio"):
        name = name.removesuffix(unit)
    return name.removesuffix("_s") if _is_seconds(name) else name


def _told(name: str, value: object) -> str:
    """A value of an event's detail, by the unit in its name. Nanoseconds are a moment or a duration."""
    if isinstance(value, list):
        return f"[{', '.join(_told(name, each) for each in value)}]"
    if isinstance(value, dict):
        if name.endswith("_ns"):
            return ", ".join(f"{part} {_told(name, took)}" for part, took in value.items())
        return f"{{{', '.join(f'{_label(part)}: {_told(part, each)}' for part, each in value.items())}}}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if name.endswith("_ns") and value >= _MOMENT_NS:
        return f"{clock(int(value))} UTC"
    has_unit = _label(name) != name
    return number(name, value) if has_unit or isinstance(value, float) else str(value)


def metric_chart(
    rows: Sequence[JsonObject],
    name: str,
    launches: Sequence[int],
    theme: Theme,
    *,
    steps: Sequence[StepMark] = (),
) -> Chart:
    """One counter over time, a line for each node and device.

    `launches` of the job are moments, UTC ns. `steps` stand at the foot of the chart.
    """
    lines: dict[str, list[JsonObject]] = {}
    for row in rows:
        lines.setdefault(f"{row['node']} {row['device']}".strip(), []).append(row)
    drawn = [_metric_line(line, name, index, points) for index, (line, points) in enumerate(lines.items())]
    dotted = {"width": 1, "type": "dotted", "color": theme.muted}
    launched = [{"xAxis": at / 1e6, "lineStyle": dotted, "label": {"show": False}} for at in launches]
    foot = {"symbol": "rect", "symbolSize": [1, 14], "silent": True, "itemStyle": {"color": theme.muted}}
    foot["data"] = [_foot(mark, theme, words="step " if i == 0 else "") for i, mark in enumerate(steps)]
    return chart(
        theme,
        height=_METRIC_PX,
        tooltip={"trigger": "axis"},
        legend=_legend(theme),
        grid={"left": _LEFT, "right": 16, "top": 36, "bottom": _BOTTOM},
        xAxis=axis(theme, "time", name="UTC", nameGap=26, splitLine={"show": False}),
        yAxis=axis(theme, "value", name=name, nameGap=_LEFT - 22, scale=True),
        series=[*drawn, mark_lines(launched), {"type": "line", "data": [], "markPoint": foot}],
        **zoom(theme),
    )


def _metric_line(line: str, name: str, index: int, points: Sequence[JsonObject]) -> JsonObject:
    return {
        "type": "line",
        "name": line,
        "dimensions": ["at", "value", "told"],
        "encode": {"x": "at", "y": "value", "tooltip": ["told"]},
        "data": [[row["ts_ns"] / 1e6, row["value"], number(name, row["value"])] for row in points],
        "showSymbol": len(points) == 1,
        "symbolSize": 5,
        "itemStyle": {"color": _LINES[index % len(_LINES)]},
        "lineStyle": {"width": 1.4},
        "emphasis": {"disabled": True},
    }


def _legend(theme: Theme) -> JsonObject:
    style = {"color": theme.text, "fontSize": 12}
    return {"type": "scroll", "left": 0, "right": 110, "top": 0, "textStyle": style, "icon": "roundRect"}


def _foot(mark: StepMark, theme: Theme, *, words: str) -> JsonObject:
    """A step's number at the foot of the chart, beside a line up from the axis."""
    label = {
        "show": True, "position": "right", "distance": 3, "fontSize": 11, "color": theme.muted,
        "formatter": f"{words}{mark.step:,}",
    }  # fmt: skip
    return {"coord": [mark.ts_ns / 1e6, 0], "y": _METRIC_PX - _BOTTOM - 7, "label": label}


def work_chart(rows: Sequence[JsonObject], theme: Theme) -> Chart:
    """The working time of ranks over steps, on the band and the median of their stage."""
    first = [row for row in rows if row["rank"] == rows[0]["rank"]]
    low = [[row["step"], row["low_ns"] / 1e6] for row in first]
    wide = [[row["step"], (row["high_ns"] - row["low_ns"]) / 1e6] for row in first]
    band = {
        "type": "line", "stack": "band", "symbol": "none", "lineStyle": {"width": 0}, "silent": True,
        "tooltip": {"show": False}, "itemStyle": {"color": "rgba(140,150,165,.6)"},
    }  # fmt: skip
    usual = {
        "type": "line", "name": "median of its stage", "symbol": "none",
        "data": [[row["step"], row["usual_ns"] / 1e6] for row in first],
        "itemStyle": {"color": theme.muted}, "lineStyle": {"width": 1.4, "type": "dashed"},
        "tooltip": {"valueFormatter": "%.4g ms"},
    }  # fmt: skip
    area = {"color": "rgba(140,150,165,.3)"}
    own = [
        _work_line(rank, index, [row for row in rows if row["rank"] == rank])
        for index, rank in enumerate(sorted({row["rank"] for row in rows}))
    ]
    shown = ["10 to 90 % of its stage", usual["name"], *(line["name"] for line in own)]
    return chart(
        theme,
        height=300,
        tooltip={"trigger": "axis"},
        legend=_legend(theme) | {"data": shown},
        grid={"left": _LEFT, "right": 16, "top": 36, "bottom": _BOTTOM},
        xAxis=axis(
            theme, "value", name="step", nameGap=26, min="dataMin", max="dataMax", minInterval=1,
            axisPointer={"label": {"precision": 0}},
            splitLine={"show": False},
        ),
        yAxis=axis(theme, "value", name="working time, ms", nameGap=_LEFT - 22, scale=True),
        series=[
            {**band, "data": low},
            {**band, "name": shown[0], "data": wide, "areaStyle": area},
            usual,
            *own,
        ],
        **zoom(theme),
    )  # fmt: skip


def _work_line(rank: int, index: int, rows: Sequence[JsonObject]) -> JsonObject:
    return {
        "type": "line",
        "name": f"rank {rank}",
        "data": [[row["step"], row["work_ns"] / 1e6] for row in rows],
        "showSymbol": len(rows) < _FEW_STEPS,
        "symbolSize": 5,
        "itemStyle": {"color": _LINES[index % len(_LINES)]},
        "lineStyle": {"width": 1.8},
        "emphasis": {"disabled": True},
        "tooltip": {"valueFormatter": "%.4g ms"},
    }


def beside_cohort(rows: Sequence[JsonObject]) -> str:
    """How the ranks work beside their stage, in one sentence: the one that differs most."""
    if not rows:
        return "No working time of these steps is on record."
    totals: dict[int, list[int]] = {}
    for row in rows:
        total = totals.setdefault(row["rank"], [0, 0])
        total[0] += row["work_ns"]
        total[1] += row["usual_ns"]
    rank = max(totals, key=lambda r: (totals[r][0] / max(1, totals[r][1]), -r))
    work, usual = totals[rank]
    steps = sum(row["rank"] == rank for row in rows)
    return (
        f"Rank {rank} works {duration(work / steps)} a step, {work / max(1, usual):.2f}x the median of the "
        f"{rows[0]['cohort']} ranks of its stage."
    )


def about(findings: Sequence[JsonObject], *, ranks: Sequence[int] = (), node: str = "") -> list[JsonObject]:
    """Findings about these ranks, or about this node and its parts."""
    names = {str(rank) for rank in ranks}
    return [
        f
        for f in findings
        if (f["subject_type"] == "rank" and f["subject"] in names)
        or (node and f["subject_type"] in ("node", "gpu", "link") and _is_on(node, f["subject"]))
    ]


def _is_on(node: str, subject: str) -> bool:
    """Whether a subject is the node, a part of it, or a link that ends at it. Names may begin alike.

    >>> _is_on("n1", "n1/mlx5_0/1"), _is_on("n1", "n0-n1"), _is_on("n1", "n10/mlx5_0/1")
    (True, True, False)
    """
    ends = subject.split(" to ")  # a path: "n0/mlx5_0/1 to n1/mlx5_0/1"
    return any(end.partition("/")[0] == node for end in ends) or (
        "/" not in subject and subject.startswith(f"{node}-") != subject.endswith(f"-{node}")
    )
