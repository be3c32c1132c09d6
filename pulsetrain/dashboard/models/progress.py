"""The progress of a job over its steps: loss, step time, throughput, and what interrupted it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models import charts
from pulsetrain.dashboard.models.charts import Chart, Theme, chart, mark_lines, zoom
from pulsetrain.dashboard.models.text import duration

_MARKERS = {
    "attempt_started": ("restart", "#0072B2"),
    "evict": ("evicted", "#D55E00"),
    "node_lost": ("node lost", "#A3195B"),
    "hang": ("hang", "#D55E00"),
    "job_finished": ("finished", "#4C7A9B"),
    "job_ended": ("ended by a signal", "#4C7A9B"),
}
MARKER_KINDS = tuple(_MARKERS)
_HEIGHT, _PANEL_PX, _LEFT = 440, 102, 84
_LABEL_CHARACTERS = 56  # along the height of the chart
_LABEL_ROOM = 0.012  # of the width of the chart: what a label takes
_Mark = tuple[float, str, str]
"""place on the x axis, label, colour"""
_PANELS = (
    ("tokens_per_s", "tokens/s", "#009E73"),
    ("step_ms", "step time, ms", "#7A5BB5"),
    ("loss", "loss", "#3B7DB8"),
)
"""From the foot of the chart up, because a tooltip tells the last one first."""
_LOSS = len(_PANELS) - 1


def event_marks(events: Sequence[JsonObject]) -> list[tuple[int, str, str]]:
    """Return (time, label, colour) of each interruption, oldest first. The first attempt is none."""
    marks = [
        (row["ts_ns"], _label(row), _MARKERS[row["kind"]][1])
        for row in events
        if row["kind"] in _MARKERS and not (row["kind"] == "attempt_started" and row["attempt"] <= 0)
    ]
    return sorted(marks)


def _label(row: JsonObject) -> str:
    word = _MARKERS[row["kind"]][0]
    return f"{word} {row['node']}".strip() if row["kind"] != "attempt_started" else word


def progress_chart(
    rows: Sequence[JsonObject], events: Sequence[JsonObject], theme: Theme, *, axis: str
) -> Chart:
    """Loss, step time and throughput over steps (`axis` "step") or time ("time"), with restarts and
    evictions.

    Attempts are separate lines, so that steps done twice do not draw a zigzag. A NaN loss leaves a gap. So
    do steps whose tokens nobody counted. A panel of which nothing is known says so.
    """
    marks = [(_position(rows, ts_ns, axis), label, colour) for ts_ns, label, colour in event_marks(events)]
    marks.sort(key=lambda mark: mark[0])
    first, last = _extent(rows, marks, axis)
    panels = range(len(_PANELS))
    lines = [
        _line(index, [row for row in rows if row["attempt"] == attempt], axis)
        for attempt in sorted({row["attempt"] for row in rows})
        for index in panels
    ]
    return chart(
        theme,
        height=_HEIGHT,
        tooltip={"trigger": "axis", "order": "seriesAsc"},
        axisPointer={"link": [{"xAxisIndex": "all"}]},
        title=[_title(index, rows) for index in panels],
        grid=[{"left": _LEFT, "right": 16, "top": _top(i), "height": _PANEL_PX} for i in panels],
        xAxis=[_x_axis(theme, index, axis, first, last) for index in panels],
        yAxis=[
            charts.axis(theme, "value", gridIndex=index, splitNumber=3, scale=index == _LOSS)
            for index in panels
        ],
        series=[*lines, *(_marks(index, marks, (first, last), theme) for index in panels)],
        **zoom(theme),
    )


def _top(index: int) -> int:
    return 24 + (_LOSS - index) * (_PANEL_PX + 24)


def _title(index: int, rows: Sequence[JsonObject]) -> JsonObject:
    """What a panel shows, inside the chart so that three scales of any width stay aligned."""
    name, text, colour = _PANELS[index]
    if rows and all(_value(row, name) is None for row in rows):
        text = f"{text}: not known"
    style = {"color": colour, "fontSize": 12, "fontWeight": "bold"}
    return {"text": text, "left": _LEFT - 4, "top": _top(index) - 22, "textStyle": style}


def _x_axis(theme: Theme, index: int, axis: str, first: float, last: float) -> JsonObject:
    at_foot, over_time = index == 0, axis == "time"
    return charts.axis(
        theme,
        "time" if over_time else "value",
        gridIndex=index,
        min=first,
        max=last if last > first else first + 1,
        minInterval=0 if over_time else 1,
        axisLabel={"show": at_foot},
        axisTick={"show": at_foot},
        axisPointer={"label": {"precision": "auto" if over_time else 0}},
        name=("UTC" if over_time else "step") if at_foot else "",
        nameGap=26,
        splitLine={"show": False},
    )


def _line(index: int, rows: Sequence[JsonObject], axis: str) -> JsonObject:
    name, title, colour = _PANELS[index]
    return {
        "type": "line",
        "name": title,
        "xAxisIndex": index,
        "yAxisIndex": index,
        "data": [[_along(row, axis), _value(row, name)] for row in rows],
        "showSymbol": len(rows) == 1,
        "symbolSize": 5,
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour, "width": 1.6},
        "emphasis": {"disabled": True},
        "tooltip": {"valueFormatter": "%.5g"},
    }


def _value(row: JsonObject, name: str) -> float | None:
    value = row["step_ns"] / 1e6 if name == "step_ms" else row[name]
    if name == "tokens_per_s" and not value:
        return None  # no rank counted them, and a step without any token is none
    return value if value is not None and math.isfinite(value) else None


def _along(row: JsonObject, axis: str) -> float:
    return float(row["start_ns"] / 1e6 if axis == "time" else row["step"])


def _position(rows: Sequence[JsonObject], ts_ns: int, axis: str) -> float:
    """Where on the x axis a moment lies: its time in ms, or the last step that had begun by then."""
    if axis == "time":
        return ts_ns / 1e6
    begun = [row["step"] for row in rows if row["start_ns"] <= ts_ns]
    return float(begun[-1] if begun else 0)


def _extent(rows: Sequence[JsonObject], marks: Sequence[_Mark], axis: str) -> tuple[float, float]:
    """From where to where the x axis goes."""
    places = [*(_along(row, axis) for row in rows), *(at for at, _, _ in marks)]
    return min(places, default=0.0), max(places, default=0.0)


def _marks(index: int, marks: Sequence[_Mark], extent: tuple[float, float], theme: Theme) -> JsonObject:
    """A line at each mark, in one panel. The panel at the top has the labels, which go down over all.

    Marks too near to each other for a label each share one.
    """
    room = _LABEL_ROOM * (extent[1] - extent[0])
    shared: list[list[_Mark]] = []
    for mark in marks:
        if shared and mark[0] - shared[-1][0][0] <= room:
            shared[-1].append(mark)
        else:
            shared.append([mark])
    labels = {group[0][0]: [label for _, label, _ in group] for group in shared} if index == _LOSS else {}
    places = [
        {
            "xAxis": at,
            "name": _full(labels.get(at, [])),
            "lineStyle": {"color": colour, "width": 1, "type": "dotted"},
            "label": _label_of(labels.get(at, []), theme, left=at - extent[0] > room),
        }
        for at, colour in sorted({at: colour for at, _, colour in reversed(marks)}.items())
    ]
    return mark_lines(places, xAxisIndex=index, yAxisIndex=index)


def _label_of(labels: Sequence[str], theme: Theme, *, left: bool) -> JsonObject:
    """What happened, along the line. At the left edge of the chart it is on the right of the line."""
    place = "insideEndTop" if left else "insideEndBottom"
    return {
        "show": bool(labels), "formatter": _short(labels) if labels else "", "position": place,
        "color": theme.muted, "fontSize": 11,
    }  # fmt: skip


def _full(labels: Sequence[str]) -> str:
    """All labels, what happened more than once with its number.

    >>> _full(["node lost a", "restart", "restart"])
    'node lost a, restart (2 times)'
    """
    return ", ".join(
        label if times == 1 else f"{label} ({times} times)" for label, times in Counter(labels).items()
    )


def _short(labels: Sequence[str]) -> str:
    """The labels where the chart is high enough for them, else the first and how many more there are."""
    full = _full(labels)
    if len(full) <= _LABEL_CHARACTERS:
        return full
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    room = _LABEL_CHARACTERS - len(more)
    first = labels[0] if len(labels[0]) <= room else f"{labels[0][: room - 1]}…"
    return f"{first}{more}"


def headline(rows: Sequence[JsonObject]) -> dict[str, str]:
    """The newest step in words: loss, step time, throughput, step. "-" for what is not known."""
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
