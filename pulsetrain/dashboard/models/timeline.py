"""What chosen ranks did in chosen steps: one lane for each stream, open spans drawn up to now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import CATEGORY_COLOURS, Theme, frame
from pulsetrain.dashboard.models.text import clock, duration, size


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One span on its lane, in nanoseconds since the timeline's origin. `depth` 1 lies inside another."""

    lane: str
    start_ns: int
    length_ns: int
    category: str
    phase: str
    open: bool
    depth: int
    hover: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes in order of rank, bars oldest first. `origin_ns` is UTC. `left_out` spans did not fit."""

    origin_ns: int
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    left_out: int


def timeline(rows: Sequence[JsonObject], *, live_attempt: int, now_ns: int) -> Timeline:
    """The spans of `views.spans` as bars. An open span of `live_attempt` (-1: no attempt runs) reaches to
    now, one of an attempt that is over keeps the age at which it was last seen."""
    if not rows:
        return Timeline(origin_ns=0, lanes=(), bars=(), left_out=0)
    origin = min(row["start_ns"] for row in rows)
    bars = [_bar(row, origin, now_ns if row["attempt"] == live_attempt else 0) for row in rows]
    lanes = {(row["rank"], row["lane"]): bar.lane for row, bar in zip(rows, bars, strict=True)}
    return Timeline(
        origin_ns=origin,
        lanes=tuple(lanes[key] for key in sorted(lanes)),
        bars=tuple(sorted(bars, key=lambda bar: (bar.start_ns, bar.depth, -bar.length_ns))),
        left_out=max(0, rows[0]["spans_in_all"] - len(rows)),
    )


def _bar(row: JsonObject, origin: int, now_ns: int) -> Bar:
    length = (
        max(int(row["duration_ns"]), now_ns - row["start_ns"]) if row["open"] else int(row["duration_ns"])
    )
    return Bar(
        lane=f"rank {row['rank']} · {row['lane']}",
        start_ns=row["start_ns"] - origin,
        length_ns=length,
        category=row["category"] if row["category"] in CATEGORY_COLOURS else "other",
        phase=row["phase"],
        open=bool(row["open"]),
        depth=1 if row["parent"] else 0,
        hover=_hover(row, length),
    )


def _hover(row: JsonObject, length_ns: int) -> str:
    lines = [f"<b>{row['phase']}</b> {duration(length_ns)}" + (" and still open" if row["open"] else "")]
    where = f"rank {row['rank']} on {row['node']}, step {row['step']}"
    lines.append(where + (f", microbatch {row['microbatch']}" if row["microbatch"] >= 0 else ""))
    if row["group"]:
        payload = f", {size(row['bytes'])}" if row["bytes"] else ""
        lines.append(f"group {row['group']}, seq {row['seq']}{payload}")
    lines.append(f"began {clock(row['start_ns'])} UTC, attempt {row['attempt']}")
    return "<br>".join(lines)


def figure(shown: Timeline, theme: Theme) -> go.Figure:
    """The timeline as horizontal bars, coloured by category. Open spans are hatched and say so."""
    chart = frame(theme, height=max(240, 110 + 34 * len(shown.lanes)), barmode="overlay", hovermode="closest")
    for category, colour in CATEGORY_COLOURS.items():
        for depth in (0, 1):
            bars = [bar for bar in shown.bars if bar.category == category and bar.depth == depth]
            if bars:
                _add_bars(chart, bars, category, colour, depth, theme)
    _add_open_marks(chart, shown, theme)
    chart.update_layout(uniformtext={"minsize": 9, "mode": "hide"})
    chart.update_xaxes(title_text=f"ms since {clock(shown.origin_ns)} UTC", rangemode="tozero")
    chart.update_yaxes(categoryorder="array", categoryarray=list(reversed(shown.lanes)), type="category")
    return chart


def _add_bars(
    chart: go.Figure, bars: Sequence[Bar], category: str, colour: str, depth: int, theme: Theme
) -> None:
    shown = any(trace.name == category for trace in chart.data)
    chart.add_bar(
        orientation="h",
        base=[bar.start_ns / 1e6 for bar in bars],
        x=[bar.length_ns / 1e6 for bar in bars],
        y=[bar.lane for bar in bars],
        width=0.4 if depth else 0.8,
        name=category,
        legendgroup=category,
        showlegend=not shown,
        text=[bar.phase for bar in bars],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 11, "color": "#ffffff"},
        constraintext="both",
        marker={
            "color": colour,
            "line": {"width": 0.6, "color": theme.paper},
            "pattern": {
                "shape": ["/" if bar.open else "" for bar in bars],
                "fillmode": "overlay",
                "fgcolor": "#ffffff",
                "fgopacity": 0.55,
                "size": 7,
            },
        },
        customdata=[bar.hover for bar in bars],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _add_open_marks(chart: go.Figure, shown: Timeline, theme: Theme) -> None:
    still = [bar for bar in shown.bars if bar.open]
    if not still:
        return
    chart.add_scatter(
        x=[(bar.start_ns + bar.length_ns) / 1e6 for bar in still],
        y=[bar.lane for bar in still],
        mode="markers",
        name="still open",
        marker={"symbol": "triangle-right", "size": 11, "color": theme.text},
        customdata=[bar.hover for bar in still],
        hovertemplate="%{customdata}<extra></extra>",
    )
