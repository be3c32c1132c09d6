"""The heatmap: rows of a level by phase or by step window, coloured by the time that each costs the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.attribution import Accused
from pulsetrain.dashboard.models.charts import Chart, Theme, axis, chart
from pulsetrain.dashboard.models.states import RANK_STATES, look
from pulsetrain.dashboard.models.text import duration

FULL = 0.02  # of a step lost: drawn in full colour, unless a cell loses more
_CATEGORY_ORDER = ("data", "compute", "communication", "checkpoint", "other")
_BELOW: Mapping[str, str] = MappingProxyType({"job": "stage", "stage": "dp", "dp": "node", "node": "rank"})
_AXES: Mapping[str, str] = MappingProxyType({"stage": "stages", "dp": "dps", "rank": "ranks"})
_MOST_PINNED = 8
_FEW_ROWS, _ROW_PX, _TOP_PX = 30, 26, 44
_NOTE_CHARACTERS = 150


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: net times of its worst rank and of that rank's cohort, ns a step. `share` is the time lost as
    a part of the step: above 0 works longer, below 0 waits longer. It is 0 for quicker ranks.
    """

    rank: int
    node: str
    phase: str
    value_ns: int
    usual_ns: int
    cohort: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. `opens` is the view below it, as parameters of the address. `rank` is -1 for several ranks.

    A row with a `note` has no cells: somebody is accused, and not because of the time that is shown.
    """

    name: str
    cells: tuple[Cell | None, ...]
    pinned: bool
    opens: Mapping[str, str]
    rank: int = -1
    note: str = ""
    colour: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A heatmap: pinned rows on top, then the rows of the level in their order. `worst` is a sentence."""

    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    worst: str
    culprit: int = -1


def grid(bins: Sequence[JsonObject], *, by: str, within: str = "", named: Sequence[Accused] = ()) -> Grid:
    """The rows of `heat.heat` as a grid. `by` and `within` are the level and the ranks that were asked for.

    Whoever is `named` by a finding and does not stand out has a row of its own on top. The order of the rows
    of the answer changes nothing.
    """
    if not bins:
        return Grid(rows=(), columns=(), worst="No data in these steps.")
    columns = tuple(sorted({row["col"] for row in bins}, key=_column_order(bins)))
    step_ns = _step_ns(bins)
    pinned = _pinned(bins, columns, step_ns)
    notes = _notes(named, pinned, len(columns))
    by_bin: dict[int, list[JsonObject]] = {}
    for row in bins:
        by_bin.setdefault(row["bin"], []).append(row)
    rows = [_row(by_bin[place], columns, step_ns, by=by, within=within) for place in sorted(by_bin)]
    return Grid(
        rows=(*notes, *pinned, *rows),
        columns=columns,
        worst=_worst(pinned, rows),
        culprit=next((c.rank for row in pinned[:1] for c in row.cells if c), -1),
    )


def _step_ns(bins: Sequence[JsonObject]) -> int:
    """The usual time of a step: of each phase, that of its slowest cohort in sight."""
    usual: dict[str, int] = {}
    for row in bins:
        usual[row["phase"]] = max(usual.get(row["phase"], 0), row["usual_ns"])
    return max(1, sum(usual.values()))


def _column_order(bins: Sequence[JsonObject]) -> Callable[[str], tuple[int, int, str]]:
    """Return the sort key of columns: steps by number, phases by category and then by what takes longest."""
    longest: dict[str, int] = {}
    category: dict[str, str] = {}
    for row in bins:
        longest[row["col"]] = max(longest.get(row["col"], 0), row["usual_ns"])
        category[row["col"]] = max(category.get(row["col"], ""), row["category"])
    order = {name: index for index, name in enumerate(_CATEGORY_ORDER)}

    def key(column: str) -> tuple[int, int, str]:
        if column.isdigit():
            return (0, int(column), "")
        return (order.get(category[column], len(order)), -longest[column], column)

    return key


def _cell(row: JsonObject, step_ns: int) -> Cell:
    lost = max(0, row["value_ns"] - row["usual_ns"])
    sign = -1 if row["category"] == "communication" else 1
    names = ("rank", "node", "phase", "value_ns", "usual_ns", "cohort")
    return Cell(**{name: row[name] for name in names}, share=sign * lost / step_ns)


def _pinned(bins: Sequence[JsonObject], columns: Sequence[str], step_ns: int) -> list[Row]:
    """The ranks that stand out, the worst first. All ranks of a node that stand out together are one row."""
    found: dict[int, tuple[int, str, dict[str, Cell]]] = {}
    for row in bins:
        for most, rank, value, usual, cohort, node in map(_values, row["suspects"]):
            own = {"rank": rank, "value_ns": value, "usual_ns": usual, "cohort": cohort, "node": node}
            cell = _cell({**row, **own}, step_ns)
            found.setdefault(rank, (most, node, {}))[2][row["col"]] = cell
    worst = sorted(found, key=lambda rank: (-found[rank][0], rank))
    of_node: dict[str, list[int]] = {}
    for rank in worst:
        of_node.setdefault(found[rank][1], []).append(rank)
    rows = []
    for node, ranks in of_node.items():
        cells = found[ranks[0]][2]
        name = f"rank {ranks[0]}" if len(ranks) == 1 else f"{node}: {len(ranks)} ranks"
        opens = {"by": "rank", "within": f"rank={min(ranks)}:{max(ranks)}"}
        rows.append(
            Row(
                name=f"◆ {name}",
                cells=tuple(cells.get(column) for column in columns),
                pinned=True,
                opens=opens,
                rank=ranks[0] if len(ranks) == 1 else -1,
            )
        )
    return rows[:_MOST_PINNED]


def _notes(named: Sequence[Accused], pinned: Sequence[Row], columns: int) -> list[Row]:
    """A row for each that is accused and that no pinned row shows."""
    shown = {row.name.removeprefix("◆ ").partition(":")[0] for row in pinned}
    rows = []
    for each in named[:_MOST_PINNED]:
        state = look(each.state, RANK_STATES)
        if each.name not in shown:
            rows.append(
                Row(
                    name=f"{state.glyph} {each.name}",
                    cells=(None,) * columns,
                    pinned=True,
                    opens={},
                    note=each.summary,
                    colour=state.colour,
                )
            )
    return rows


def _values(suspect: object) -> tuple[int, int, int, int, int, str]:
    """A suspect of `heat.heat`, which is a dictionary of its places or a tuple."""
    values = list(suspect.values()) if isinstance(suspect, dict) else list(suspect)  # type: ignore[call-overload]
    return values[0], values[1], values[2], values[3], values[4], values[5]


def _row(cells: Sequence[JsonObject], columns: Sequence[str], step_ns: int, *, by: str, within: str) -> Row:
    by_name = {row["col"]: _cell(row, step_ns) for row in cells}
    return Row(
        name=_name(cells[0], by),
        cells=tuple(by_name.get(column) for column in columns),
        pinned=False,
        opens=_opens(cells, by, within),
        rank=int(cells[0]["first_rank"]) if all(c["ranks"] == 1 for c in cells) else -1,
    )


def _name(row: JsonObject, by: str) -> str:
    """What a row is called: one thing, or the first and last of several."""
    first, last = row["first_item"], row["last_item"]
    if by == "node":
        return row["first_node"] if first == last else f"{row['first_node']} … {row['last_node']}"
    if by == "job":
        return f"all {row['ranks']:,} ranks"
    word = {"stage": "stage", "dp": "dp", "rank": "rank"}[by]
    return f"{word} {first}" if first == last else f"{word} {first}-{last}"


def _opens(cells: Sequence[JsonObject], by: str, within: str) -> dict[str, str]:
    """The view below a row: the same level of fewer ranks, or the next level of one thing."""
    first, last = cells[0]["first_item"], cells[0]["last_item"]
    if by == "job":
        return {"by": "stage", "within": within}
    axis = by if by in ("stage", "dp") else "rank"
    if by == "node":
        first, last = min(c["first_rank"] for c in cells), max(c["last_rank"] for c in cells)
    one = cells[0]["items"] == 1
    level = _BELOW.get(by, "rank") if one else by
    return {"by": level, "within": narrowed(within, axis, first, last)}


def narrowed(within: str, axis: str, first: int, last: int) -> str:
    """The ranks of `within` whose place on an axis lies in first..last.

    >>> narrowed("stage=3", "dp", 8, 15), narrowed("stage=0:7", "stage", 3, 3)
    ('stage=3,dp=8:15', 'stage=3')
    """
    kept = [part for part in within.split(",") if part and part.partition("=")[0] != axis]
    return ",".join([*kept, f"{axis}={first}" if first == last else f"{axis}={first}:{last}"])


def _worst(pinned: Sequence[Row], rows: Sequence[Row]) -> str:
    """Name the rank that loses most working time. Waiting follows from the work of others."""
    outliers = [cell for row in pinned for cell in row.cells if cell and cell.share > 0]
    if not outliers:
        waits = [cell for row in rows for cell in row.cells if cell and cell.share < -0.05]
        if not waits:
            return "No rank works longer than the others of its stage by more than chance."
        cell = min(waits, key=lambda c: c.share)
        return (
            "No rank works longer than the others of its stage by more than chance. "
            f"Rank {cell.rank} on {cell.node} waits longest, in {cell.phase}."
        )
    cell = max(outliers, key=lambda c: c.share)
    others = len([row for row in pinned if row.cells]) - 1
    more = f" {others} more {'row stands' if others == 1 else 'rows stand'} out." if others else ""
    return (
        f"Rank {cell.rank} on {cell.node} loses most: {cell.phase} takes {duration(cell.value_ns)} a step, "
        f"{cell.value_ns / max(1, cell.usual_ns):.2f}x its cohort "
        f"({duration(cell.value_ns - cell.usual_ns)} more).{more}"
    )


_HOVER = "<b>rank {@[3]}</b> on {@[4]}: {@[5]} a step, {@[6]}x the median of {@[7]}<br>{@[8]} % of the step"
_LONGEST_NAME_PX = 190
_MARK_SHARE = 0.008  # of the width, in front of the words on somebody
_GAP_PX = 6  # between the pinned rows and the others


def _hover(cell: Cell) -> list[str | int | float]:
    """What `_HOVER` says of a cell: numbers, not sentences, because there are hundreds of cells."""
    ratio = round(cell.value_ns / max(1, cell.usual_ns), 2)
    what = "waits" if cell.share < 0 else "loses"
    words = f"{what} {100 * abs(cell.share):.1f}"
    return [cell.rank, cell.node, duration(cell.value_ns), ratio, cell.cohort, words]


def grid_chart(shown: Grid, theme: Theme, *, columns_title: str) -> Chart:
    """The grid as a chart. Red works longer than its cohort, blue waits longer, grey has no data.

    The rows that stand out are a grid of their own above the others.
    """
    full = max([FULL, *(abs(c.share) for row in shown.rows for c in row.cells if c)])
    row_px, left = _row_px(len(shown.rows)), _names_px(shown)
    parts = [part for part in _parts(shown) if part]
    tops = [_TOP_PX + (len(parts[0]) * row_px + _GAP_PX if index else 0) for index in range(len(parts))]
    ground = {"show": True, "backgroundColor": theme.missing, "borderWidth": 0, "left": left, "right": 16}
    scale = {"color": [theme.quicker, theme.calm, theme.slower]}
    numbers = range(len(parts))
    notes = [_notes_series(i, len(parts) + i, parts[i], row_px, theme) for i in numbers]
    return chart(
        theme,
        height=_TOP_PX + row_px * len(shown.rows) + _GAP_PX + 12,
        tooltip={"trigger": "item", "formatter": _HOVER},
        grid=[{**ground, "top": tops[i], "height": row_px * len(parts[i])} for i in numbers],
        xAxis=[
            *(_columns_axis(theme, shown.columns, i, columns_title) for i in numbers),
            *({"type": "value", "show": False, "min": 0, "max": 1, "gridIndex": i} for i in numbers),
        ],
        yAxis=[_names_axis(theme, [row.name for row in parts[i]], i, row_px) for i in numbers],
        visualMap={
            "show": False, "min": -1, "max": 1, "dimension": 2,
            "seriesIndex": list(numbers), "inRange": scale,
        },
        series=[
            *(_cells_series(i, parts[i], shown.columns, full, theme) for i in numbers),
            *chain.from_iterable(notes),
        ],
    )  # fmt: skip


def _parts(shown: Grid) -> list[list[Row]]:
    """The pinned rows and the others."""
    return [[row for row in shown.rows if row.pinned], [row for row in shown.rows if not row.pinned]]


def _names_px(shown: Grid) -> int:
    """The room for the names of the rows."""
    longest = max((len(row.name) for row in shown.rows), default=0)
    return min(_LONGEST_NAME_PX, 24 + 7 * longest)


def _row_px(rows: int) -> int:
    return _ROW_PX if rows <= _FEW_ROWS else _ROW_PX // 2


def _text_px(row_px: int) -> int:
    return 12 if row_px == _ROW_PX else 10


def _columns_axis(theme: Theme, columns: Sequence[str], index: int, title: str) -> JsonObject:
    """The names of the columns stand above the first part only."""
    first = index == 0
    return axis(
        theme, "category", position="top", data=list(columns), gridIndex=index,
        axisLabel={"show": first}, axisTick={"show": False}, splitLine={"show": False},
        name=title if first else "", nameGap=26,
    )  # fmt: skip


def _names_axis(theme: Theme, names: Sequence[str], index: int, row_px: int) -> JsonObject:
    labels = {
        "interval": 0, "hideOverlap": False, "fontSize": _text_px(row_px), "width": _LONGEST_NAME_PX - 12,
        "overflow": "truncate",
    }  # fmt: skip
    return axis(
        theme, "category", data=list(names), inverse=True, gridIndex=index, axisLabel=labels,
        axisTick={"show": False}, splitLine={"show": False},
    )  # fmt: skip


def _cells_series(
    index: int, rows: Sequence[Row], columns: Sequence[str], full: float, theme: Theme
) -> JsonObject:
    return {
        "type": "heatmap",
        "id": f"part-{index}",
        "xAxisIndex": index,
        "yAxisIndex": index,
        "data": [
            [columns.index(column), row, round(cell.share / full, 3), *_hover(cell)]
            for row, column, cell in _points(rows, columns)
        ],
        "itemStyle": {"borderColor": theme.paper, "borderWidth": 1},
        "select": {"itemStyle": {"borderColor": theme.text, "borderWidth": 1}},
        "selectedMode": "single",
    }


def _points(rows: Sequence[Row], columns: Sequence[str]) -> list[tuple[int, str, Cell]]:
    """What a chart has data for, in its order: place of the row, column, cell."""
    return [
        (place, column, cell)
        for place, row in enumerate(rows)
        for column, cell in zip(columns, row.cells, strict=True)
        if cell
    ]


def _notes_series(
    index: int, value_axis: int, rows: Sequence[Row], row_px: int, theme: Theme
) -> list[JsonObject]:
    """What is said of those who are accused for something else than time: a mark in front, and words."""
    noted = [(place, row) for place, row in enumerate(rows) if row.note]
    if not noted:
        return []
    bars = {
        "type": "bar", "xAxisIndex": value_axis, "yAxisIndex": index, "silent": True,
        "barGap": "-100%", "barWidth": row_px - 2, "tooltip": {"show": False},
    }  # fmt: skip
    words = {"show": True, "position": "insideLeft", "distance": 16, "color": theme.text}
    words |= {"fontSize": _text_px(row_px)}
    return [
        {
            **bars,
            "data": [
                {
                    "value": [width, place],
                    "itemStyle": {"color": f"{row.colour}{alpha}"},
                    "label": words | {"formatter": row.note[:_NOTE_CHARACTERS]} if alpha else {},
                }
                for place, row in noted
            ],
        }
        for width, alpha in ((1, "2e"), (_MARK_SHARE, ""))
    ]


def spans_of(within: str) -> dict[str, tuple[int, int]]:
    """The ranges of `HeatView` that an address means. Raises `UsageError`.

    >>> spans_of("stage=3,rank=0:63")
    {'stages': (3, 3), 'ranks': (0, 63)}
    """
    found: dict[str, tuple[int, int]] = {}
    for part in filter(None, within.split(",")):
        axis, _, span = part.partition("=")
        low, _, high = span.partition(":")
        if axis not in _AXES or not low.isdigit() or not (high or low).isdigit():
            raise UsageError(f"within = {part!r}: allowed: stage, dp or rank, as in stage=3,rank=0:63")
        found[_AXES[axis]] = (int(low), int(high or low))
    return found


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a click in the heatmap means. `step` is -1 where columns are phases."""

    row: Row
    cell: Cell
    step: int


def selected(shown: Grid, selection: Sequence[JsonObject]) -> Chosen | None:
    """The cell that was clicked. `selection` is what Streamlit reports of a chart of ECharts."""
    parts = [part for part in _parts(shown) if part]
    for series in selection:
        index = int(str(series["series_id"]).removeprefix("part-"))
        points = _points(parts[index], shown.columns) if index < len(parts) else []
        if series["data_indices"] and series["data_indices"][0] < len(points):
            place, column, cell = points[series["data_indices"][0]]
            return _chosen(parts[index][place], column, cell)
    return None


def _chosen(row: Row, column: str, cell: Cell | None) -> Chosen | None:
    return None if cell is None else Chosen(row=row, cell=cell, step=int(column) if column.isdigit() else -1)


def in_words(shown: Grid) -> list[tuple[Row, Chosen | None, str]]:
    """Each row with its cell that costs most, and what that cell says. A row without cells has its note.

    A table of them stands for the chart, for whoever cannot point at a cell.
    """
    return [_row_in_words(row, shown.columns) for row in shown.rows]


def _row_in_words(row: Row, columns: Sequence[str]) -> tuple[Row, Chosen | None, str]:
    cells = [(column, cell) for column, cell in zip(columns, row.cells, strict=True) if cell]
    if not cells:
        return row, None, row.note or "no data"
    column, cell = max(cells, key=lambda pair: abs(pair[1].share))
    rank, node, took, ratio, cohort, words = _hover(cell)
    what = f"{cell.phase} of rank {rank} on {node} takes {took} a step, {ratio}x the median of {cohort}"
    return row, _chosen(row, column, cell), f"{what}: {words} % of the step"
