"""The mesh of a large job as a grid of pipeline stage by block of data-parallel replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.charts import Chart, Theme, axis, chart
from pulsetrain.dashboard.models.states import RANK_STATES, look

_STAR = "path://M0,-10L3,-3L10,0L3,3L0,10L-3,3L-10,0L-3,-3Z"
_SYMBOLS = {"culprit": "diamond", "slow": "triangle", "part": _STAR, "no_data": "emptyRect"}
_NAMED = ("culprit", "slow", "part")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One cell. `state` is the most urgent of its ranks, a key of `RANK_STATES`. `named` says who it is."""

    stage: int
    place: int
    dps: tuple[int, int]
    ranks: int
    state: str
    named: str


def blocks(rows: Sequence[JsonObject], blamed: Sequence[JsonObject], blame: Attribution) -> list[Block]:
    """The rows of `mesh_blocks`. `blamed` are rows of `mesh_ranks` of those that findings name.

    Where findings name more than half of the job as victims, blocks that run are blocks that wait.
    """
    in_all = sum(row["ranks"] for row in rows)
    waiting = 2 * (len(blame.victims) + blame.unlisted) >= in_all > 0
    return [_block(row, blamed, blame, waiting=waiting) for row in rows]


def _block(row: JsonObject, blamed: Sequence[JsonObject], blame: Attribution, *, waiting: bool) -> Block:
    dps = (row["first_dp"], row["last_dp"])
    here = [r for r in blamed if r["pp"] == row["pp"] and dps[0] <= r["dp"] <= dps[1]]
    states = {r["rank"]: blame.state(r["rank"], r["node"]) for r in here}
    found = {state for state in states.values() if state}
    found |= {name for name in ("no_data", "stopped", "gone") if row[name]}
    found = found or {"victim" if waiting else "running"}
    worst = max(found, key=lambda state: look(state, RANK_STATES).urgency)
    ranks = sorted(rank for rank, state in states.items() if state == worst)
    many = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else ""
    return Block(stage=row["pp"], place=row["block"], dps=dps, ranks=row["ranks"], state=worst, named=many)


def tally(rows: Sequence[JsonObject], blame: Attribution, blamed: Sequence[JsonObject]) -> str:
    """How many ranks are in each state, the most urgent first."""
    counts: Counter[str] = Counter()
    for name in ("no_data", "stopped", "gone"):
        counts[name] = sum(row[name] for row in rows)
    for row in blamed:
        state = blame.state(row["rank"], row["node"])
        if state:
            counts[state] += 1
            counts[row["state"]] -= row["state"] != "running"
    counts["victim"] = len(blame.victims) + blame.unlisted
    counts["running"] = sum(row["ranks"] for row in rows) - sum(counts.values())
    order = sorted((s for s in counts if counts[s] > 0), key=lambda s: -look(s, RANK_STATES).urgency)
    return ", ".join(f"{counts[state]:,} {look(state, RANK_STATES).label}" for state in order)


def grid_chart(shown: Sequence[Block], theme: Theme) -> Chart:
    """The grid. Each state has a colour, a sign and one entry of the legend. Named ranks are written out."""
    stages = max((block.stage for block in shown), default=0) + 1
    places = max((block.place for block in shown), default=0)
    ends = {"showMinLabel": False, "showMaxLabel": False}  # they lie outside of the grid
    plain = {"splitLine": {"show": False}, "minInterval": 1, "axisLabel": ends}
    return chart(
        theme,
        height=min(640, max(280, 120 + 44 * stages)),
        tooltip={
            "trigger": "item",
            "formatter": "stage {@[1]}, replicas {@[3]}-{@[4]}: {@[2]} ranks<br>{@[5]}",
        },
        legend={"left": 0, "top": 0, "textStyle": {"color": theme.text, "fontSize": 12}},
        grid={"left": 52, "right": 16, "top": 36, "bottom": 44},
        xAxis=axis(
            theme,
            "value",
            name="block of data-parallel replicas",
            nameGap=26,
            min=-1,
            max=places + 1,
            **plain,
        ),
        yAxis=axis(
            theme, "value", name="pipeline stage", nameGap=30, inverse=True, min=-1, max=stages, **plain
        ),
        series=[
            _state_series(state, _of_state(shown, state), theme)
            for state in sorted({b.state for b in shown}, key=lambda name: look(name, RANK_STATES).urgency)
        ],
    )


def _of_state(shown: Sequence[Block], state: str) -> list[Block]:
    return [block for block in shown if block.state == state]


def _state_series(state: str, own: Sequence[Block], theme: Theme) -> JsonObject:
    known, named = look(state, RANK_STATES), state in _NAMED
    return {
        "type": "scatter",
        "id": state,
        "name": f"{known.glyph} {known.label} ({len(own):,})",
        "data": [
            [block.place, block.stage, block.ranks, *block.dps, block.named or known.label] for block in own
        ],
        "symbol": _SYMBOLS.get(state, "rect"),
        "symbolSize": 16 if named else 11,
        "itemStyle": {"color": known.colour, "opacity": 1},
        "label": {"show": named, "position": "top", "color": theme.text, "formatter": "{@[5]}"},
        "z": 3 if named else 2,
        "selectedMode": "single",
    }


def selected(shown: Sequence[Block], selection: Sequence[JsonObject]) -> Block | None:
    """The block that was clicked. `selection` is what Streamlit reports of a chart of ECharts."""
    for series in selection:
        own, places = _of_state(shown, str(series["series_id"])), list(map(int, series["data_indices"]))
        if places and places[0] < len(own):
            return own[places[0]]
    return None
