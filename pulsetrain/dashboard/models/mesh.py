"""The mesh of a large job as a grid of pipeline stage by block of data-parallel replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.charts import Theme, frame
from pulsetrain.dashboard.models.states import RANK_STATES, look

_SYMBOLS = {"culprit": "diamond", "slow": "triangle-up", "part": "star-diamond", "no_data": "square-open"}
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
    waiting = 2 * len(blame.victims) >= in_all > 0
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
    counts["victim"] = len(blame.victims)
    counts["running"] = sum(row["ranks"] for row in rows) - sum(counts.values())
    order = sorted((s for s in counts if counts[s] > 0), key=lambda s: -look(s, RANK_STATES).urgency)
    return ", ".join(f"{counts[state]:,} {look(state, RANK_STATES).label}" for state in order)


def figure(shown: Sequence[Block], theme: Theme) -> go.Figure:
    """The grid. Each state has a colour, a sign and one entry of the legend. Named ranks are written out."""
    stages = max((block.stage for block in shown), default=0) + 1
    chart = frame(theme, height=min(640, max(280, 120 + 44 * stages)))
    for state in sorted({b.state for b in shown}, key=lambda name: look(name, RANK_STATES).urgency):
        known, own = look(state, RANK_STATES), [block for block in shown if block.state == state]
        chart.add_scatter(
            x=[block.place for block in own],
            y=[block.stage for block in own],
            mode="markers+text" if state in _NAMED else "markers",
            name=f"{known.glyph} {known.label} ({len(own):,})",
            text=[block.named for block in own],
            textposition="top center",
            textfont={"color": theme.text, "size": 12},
            marker={
                "color": known.colour,
                "size": 16 if state in _NAMED else 11,
                "symbol": _SYMBOLS.get(state, "square"),
            },
            customdata=[[block.ranks, *block.dps, block.named or known.label] for block in own],
            hovertemplate="stage %{y}, replicas %{customdata[1]}-%{customdata[2]}: %{customdata[0]} ranks<br>"
            "%{customdata[3]}<extra></extra>",
        )
    chart.update_layout(clickmode="event+select")
    chart.update_xaxes(title_text="block of data-parallel replicas", showgrid=False, zeroline=False)
    chart.update_yaxes(
        title_text="pipeline stage", range=[stages - 0.4, -0.8], dtick=1, showgrid=False, zeroline=False
    )
    return chart


def selected(shown: Sequence[Block], points: Sequence[JsonObject]) -> Block | None:
    """The block that was clicked. `points` is the selection that Plotly reports."""
    if not points:
        return None
    at = (points[0].get("y"), points[0].get("x"))
    return next((block for block in shown if (block.stage, block.place) == at), None)
