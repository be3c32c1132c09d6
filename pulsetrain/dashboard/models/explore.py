"""What the pages Logs, Metrics, Events, Rank and Node show: pure functions over rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import plotly.graph_objects as go

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import Theme, frame
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


def metric_figure(
    rows: Sequence[JsonObject],
    name: str,
    launches: Sequence[int],
    theme: Theme,
    *,
    steps: Sequence[StepMark] = (),
) -> go.Figure:
    """One counter over time, a line for each node and device.

    `launches` of the job are moments, UTC ns. `steps` stand at the foot of the chart.
    """
    chart = frame(theme, height=380, hovermode="x unified")
    lines: dict[str, list[JsonObject]] = {}
    for row in rows:
        lines.setdefault(f"{row['node']} {row['device']}".strip(), []).append(row)
    for index, (line, points) in enumerate(lines.items()):
        chart.add_scatter(
            x=[row["ts_ns"] / 1e6 for row in points],
            y=[row["value"] for row in points],
            name=line,
            mode="lines" if len(points) > 1 else "markers",
            line={"width": 1.4, "color": _LINES[index % len(_LINES)]},
            text=[number(name, row["value"]) for row in points],
            hovertemplate="%{text}",
        )
    for at in launches:
        chart.add_vline(x=at / 1e6, line={"width": 1, "dash": "dot", "color": theme.muted})
    for index, mark in enumerate(steps):
        _mark_step(chart, mark, theme, words="step " if index == 0 else "")
    chart.update_xaxes(type="date", title_text="UTC")
    chart.update_yaxes(title_text=name)
    return chart


def _mark_step(chart: go.Figure, mark: StepMark, theme: Theme, *, words: str) -> None:
    """A step's number at the foot of the chart, and a line up from the axis beside it."""
    at = mark.ts_ns / 1e6
    line = {"width": 1, "color": theme.muted}
    chart.add_shape(type="line", xref="x", yref="paper", x0=at, x1=at, y0=0, y1=0.045, line=line)
    chart.add_annotation(
        x=at, xref="x", y=0, yref="paper", text=f"{words}{mark.step:,}", showarrow=False, xanchor="left",
        yanchor="bottom", xshift=2, font={"size": 11, "color": theme.muted},
    )  # fmt: skip


def work_figure(rows: Sequence[JsonObject], theme: Theme) -> go.Figure:
    """The working time of ranks over steps, on the band and the median of their stage."""
    chart = frame(theme, height=300, hovermode="x unified")
    first = [row for row in rows if row["rank"] == rows[0]["rank"]]
    steps = [row["step"] for row in first]
    band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    chart.add_scatter(x=steps, y=[row["high_ns"] / 1e6 for row in first], **band)
    chart.add_scatter(
        x=steps,
        y=[row["low_ns"] / 1e6 for row in first],
        mode="lines",
        line={"width": 0},
        fill="tonexty",
        fillcolor="rgba(140,150,165,.3)",
        hoverinfo="skip",
        name="10 to 90 % of its stage",
    )
    chart.add_scatter(
        x=steps,
        y=[row["usual_ns"] / 1e6 for row in first],
        mode="lines",
        line={"color": theme.muted, "width": 1.4, "dash": "dash"},
        name="median of its stage",
        hovertemplate="%{y:.4g} ms",
    )
    for index, rank in enumerate(sorted({row["rank"] for row in rows})):
        own = [row for row in rows if row["rank"] == rank]
        chart.add_scatter(
            x=[row["step"] for row in own],
            y=[row["work_ns"] / 1e6 for row in own],
            mode="lines+markers" if len(own) < 30 else "lines",
            line={"color": _LINES[index % len(_LINES)], "width": 1.8},
            name=f"rank {rank}",
            hovertemplate="%{y:.4g} ms",
        )
    chart.update_xaxes(title_text="step")
    chart.update_yaxes(title_text="working time, ms", rangemode="normal")
    return chart


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
