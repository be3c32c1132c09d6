"""Machine by phase, and machine by step window, as a ratio to the cohort's median."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.charts import Theme, frame
from pulsetrain.dashboard.models.text import duration

_TARGETS = 2000
CLIP = 2.0  # a ratio beyond this factor is drawn as this factor
_CATEGORY_ORDER = ("data", "compute", "communication", "checkpoint", "other")
_LIGHT_SCALE = ("#92C5DE", "#F4F5F6", "#F4A582")
_DARK_SCALE = ("#2F5D80", "#20252C", "#A8542F")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A heatmap's cells: `ratio[i][j]` is row i, column j. None means no data."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ratio: tuple[tuple[float | None, ...], ...]
    hover: tuple[tuple[str, ...], ...]
    rank: tuple[tuple[int, ...], ...]  # the rank behind each cell; -1: none
    worst: str  # what stands out, as a sentence
    left_out: int  # rows that did not fit


def grid(cells: Sequence[JsonObject], *, find: str = "") -> Grid:
    """The cells of `heat_by_phase` or `heat_by_step` as a grid in natural order of rows and of work.

    `find` keeps the rows whose name holds it. The order of the cells changes nothing.
    """
    by_name = {(cell["row"], cell["col"]): cell for cell in cells if find.lower() in cell["row"].lower()}
    rows = tuple(sorted({row for row, _ in by_name}, key=natural))
    columns = tuple(sorted({col for _, col in by_name}, key=_column_order(cells)))
    in_all = max((cell["rows_in_all"] for cell in cells), default=0)
    at = [[by_name.get((row, col)) for col in columns] for row in rows]
    return Grid(
        rows=rows,
        columns=columns,
        ratio=tuple(tuple(None if c is None else float(c["ratio"]) for c in line) for line in at),
        hover=tuple(
            tuple(_hover(row, col, c) for col, c in zip(columns, line, strict=True))
            for row, line in zip(rows, at, strict=True)
        ),
        rank=tuple(tuple(-1 if c is None else int(c["rank"]) for c in line) for line in at),
        worst=_worst(list(by_name.values())),
        left_out=max(0, in_all - len({cell["row"] for cell in cells})),
    )


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key by which node-2 comes before node-10."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)


def _column_order(cells: Sequence[JsonObject]) -> Callable[[str], tuple[int, int, str]]:
    """Return the sort key of columns: steps by number, phases by category and then by what takes longest."""
    longest: dict[str, int] = {}
    category: dict[str, str] = {}
    for cell in cells:
        longest[cell["col"]] = max(longest.get(cell["col"], 0), cell["usual_ns"])
        category[cell["col"]] = cell["category"]
    order = {name: index for index, name in enumerate(_CATEGORY_ORDER)}

    def key(column: str) -> tuple[int, int, str]:
        if column.isdigit():
            return (0, int(column), "")
        return (order.get(category[column], len(order)), -longest[column], column)

    return key


def _hover(row: str, column: str, cell: JsonObject | None) -> str:
    if cell is None:
        return f"{row} · {column}<br>no data"
    usual = f"median of {cell['cohort']} ranks of its stage {duration(cell['usual_ns'])}"
    return (
        f"<b>rank {cell['rank']} on {cell['node']}</b> · {cell['phase']}<br>"
        f"{cell['ratio']:.2f}x its cohort<br>"
        f"{duration(cell['value_ns'])} a step; {usual}"
    )


def _worst(cells: Sequence[JsonObject]) -> str:
    """Name the cell that is the most time away from its cohort. Less than a tenth away is not named.

    Work comes before communication, whose times follow from the work of others.
    """
    if not cells:
        return "No data in these steps."
    outliers = [cell for cell in cells if not 0.9 < cell["ratio"] < 1.1]
    if not outliers:
        return "Nothing here differs from its cohort by a tenth or more."
    cell = max(outliers, key=_weight)
    when = f" from step {cell['col']}" if cell["col"].isdigit() else ""
    return (
        f"Furthest from its cohort: rank {cell['rank']} on {cell['node']}, {cell['phase']}{when}, "
        f"at {cell['ratio']:.2f}x the median ({duration(abs(cell['value_ns'] - cell['usual_ns']))} a step)."
    )


def _weight(cell: JsonObject) -> tuple[bool, int, str, str]:
    return (
        cell["category"] != "communication",
        abs(cell["value_ns"] - cell["usual_ns"]),
        cell["row"],
        cell["col"],
    )


def figure(grid: Grid, theme: Theme, *, columns_title: str) -> go.Figure:
    """The grid as a clickable heatmap: blue is quicker than the cohort, red slower, grey is no data."""
    height = min(900, max(220, 90 + 22 * len(grid.rows)))
    chart = frame(theme, height=height)
    chart.add_heatmap(
        x=list(grid.columns),
        y=list(grid.rows),
        z=[[0 if ratio is None else None for ratio in line] for line in grid.ratio],
        colorscale=[[0, theme.missing], [1, theme.missing]],
        showscale=False,
        text=[list(line) for line in grid.hover],
        hovertemplate="%{text}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    limit = math.log2(CLIP)
    chart.add_heatmap(
        x=list(grid.columns),
        y=list(grid.rows),
        z=[[None if not r else max(-limit, min(limit, math.log2(r))) for r in line] for line in grid.ratio],
        zmin=-limit,
        zmax=limit,
        colorscale=[theme.quicker, *(_DARK_SCALE if theme.dark else _LIGHT_SCALE), theme.slower],
        colorbar=_colour_bar(theme, limit),
        text=[list(line) for line in grid.hover],
        hovertemplate="%{text}<extra></extra>",
        xgap=1 if len(grid.rows) < 200 else 0,
        ygap=1 if len(grid.rows) < 200 else 0,
    )
    _add_targets(chart, grid)
    chart.update_xaxes(side="top", title_text=columns_title, showgrid=False, type="category")
    chart.update_yaxes(autorange="reversed", showgrid=False, type="category", nticks=40)
    return chart


def _add_targets(chart: go.Figure, grid: Grid) -> None:
    """What a click hits: a heatmap's cells cannot be selected, so the cells furthest from their cohort carry
    an invisible marker each."""
    cells = [
        (abs(math.log(ratio)), row, column, hover)
        for row, ratios, hovers in zip(grid.rows, grid.ratio, grid.hover, strict=True)
        for column, ratio, hover in zip(grid.columns, ratios, hovers, strict=True)
        if ratio
    ]
    cells = sorted(cells, reverse=True)[:_TARGETS]
    chart.add_scatter(
        x=[column for _, _, column, _ in cells],
        y=[row for _, row, _, _ in cells],
        mode="markers",
        marker={"size": 16, "color": "rgba(0,0,0,0)", "symbol": "square"},
        hovertext=[hover for _, _, _, hover in cells],
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
    chart.update_layout(clickmode="event+select", hovermode="closest", hoverdistance=200)


def _colour_bar(theme: Theme, limit: float) -> JsonObject:
    ratios = (1 / CLIP, 1 / math.sqrt(CLIP), 1.0, math.sqrt(CLIP), CLIP)
    names = [
        f"≤{ratios[0]:.1f}x",
        f"{ratios[1]:.1f}x",
        "1x median",
        f"{ratios[3]:.1f}x",
        f"≥{ratios[4]:.0f}x",
    ]
    return {
        "tickvals": [max(-limit, min(limit, math.log2(r))) for r in ratios],
        "ticktext": names,
        "thickness": 10,
        "outlinewidth": 0,
        "tickfont": {"color": theme.muted, "size": 12},
        "len": 1.0,
    }


def selected(grid: Grid, points: Sequence[JsonObject]) -> tuple[int, int]:
    """Return the rank behind the cell that was clicked, and its step where columns are steps. -1 for none.

    `points` is the selection that Plotly reports.
    """
    if not points:
        return -1, -1
    row, column = str(points[0].get("y")), str(points[0].get("x"))
    if row not in grid.rows or column not in grid.columns:
        return -1, -1
    rank = grid.rank[grid.rows.index(row)][grid.columns.index(column)]
    return rank, int(column) if column.isdigit() else -1
