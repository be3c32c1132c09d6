"""The progress of a job over its steps: loss, step time, throughput, and what interrupted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import Theme, frame
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
_LABEL_CHARACTERS = 56  # along the height of the chart
_LABEL_ROOM = 0.012  # of the width of the chart: what a label takes
_Mark = tuple[float, str, str]
"""place on the x axis, label, colour"""
_PANELS = (
    ("loss", "loss", "#3B7DB8"),
    ("step_ms", "step time, ms", "#7A5BB5"),
    ("tokens_per_s", "tokens/s", "#009E73"),
)


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


def progress_figure(
    rows: Sequence[JsonObject], events: Sequence[JsonObject], theme: Theme, *, axis: str
) -> go.Figure:
    """Loss, step time and throughput over steps (`axis` "step") or time ("time"), with restarts and
    evictions.

    Attempts are separate lines, so that steps done twice do not draw a zigzag. A NaN loss leaves a gap.
    """
    figure = frame(theme, height=440, hovermode="x unified", showlegend=False)
    for index, (_, title, colour) in enumerate(_PANELS):
        _add_panel(figure, theme, index, title, colour)
    for attempt in sorted({row["attempt"] for row in rows}):
        _add_lines(figure, [row for row in rows if row["attempt"] == attempt], axis)
    marks = [(_position(rows, ts_ns, axis), label, colour) for ts_ns, label, colour in event_marks(events)]
    _add_marks(figure, sorted(marks, key=lambda mark: mark[0]), _extent(rows, marks, axis), theme)
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


def _add_lines(figure: go.Figure, rows: Sequence[JsonObject], axis: str) -> None:
    along = [_along(row, axis) for row in rows]
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


def _add_marks(figure: go.Figure, marks: Sequence[_Mark], extent: tuple[float, float], theme: Theme) -> None:
    """A line at each mark. Those too near to each other for a label each share one."""
    room = _LABEL_ROOM * (extent[1] - extent[0])
    shared: list[list[_Mark]] = []
    for mark in marks:
        if shared and mark[0] - shared[-1][0][0] <= room:
            shared[-1].append(mark)
        else:
            shared.append([mark])
    for at, colour in {at: colour for at, _, colour in reversed(marks)}.items():
        line = {"color": colour, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", xref="x", yref="paper", x0=at, x1=at, y0=0, y1=1, line=line)
    for group in shared:
        at = group[0][0]
        side = "left" if at - extent[0] <= room else "right"
        _add_label(figure, at, [label for _, label, _ in group], side, theme)


def _add_label(figure: go.Figure, at: float, labels: Sequence[str], side: str, theme: Theme) -> None:
    """What happened, along the line. `side` is where the label has the line: at the left edge on its left."""
    figure.add_annotation(
        x=at, xref="x", y=1, yref="paper", text=_short(labels), hovertext=_full(labels), showarrow=False,
        textangle=-90, xanchor=side, yanchor="top", font={"size": 11, "color": theme.muted},
    )  # fmt: skip


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
