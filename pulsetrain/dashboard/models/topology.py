"""Where the ranks are in the tensor, pipeline and data-parallel mesh, and how each of them is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.charts import Theme
from pulsetrain.dashboard.models.states import RANK_STATES, look
from pulsetrain.dashboard.models.text import ago, duration

_WRITTEN_NS = 10 * 10**9  # agents write the heartbeats of 5 s together, and rows take a moment to the store
_USUAL_NS = 5 * 10**9 // 2  # silence of agents that send a heartbeat each second
SILENT_AFTER_NS = _WRITTEN_NS + _USUAL_NS
"""A rank whose newest heartbeat is older is silent, where agents send one each second as by default."""
_BROKEN = ("stopped", "zombie", "gone")


@dataclass(frozen=True, kw_only=True)
class RankPoint:
    """One rank: where it is, and its state, a key of `RANK_STATES`."""

    rank: int
    node: str
    ip: str
    switch: str
    local_rank: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    state: str
    doing: str
    last_step: int
    last_heartbeat: str

    @property
    def has_coordinates(self) -> bool:
        """Whether the rank has reported its mesh coordinates."""
        return min(self.tp, self.pp, self.dp) >= 0


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the mesh: one stage and some data-parallel replicas, both ends included."""

    stage: int
    dps: tuple[int, int]


def part_of(text: str) -> Part | None:
    """The part that an address means, None for the whole mesh. Raises `UsageError`.

    >>> part_of("3/40-47"), part_of("")
    (Part(stage=3, dps=(40, 47)), None)
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)(?:-(\d+))?", text)
    if found is None:
        raise UsageError(f"block = {text!r}: allowed: stage/replicas, as in 3/40-47")
    stage, first, last = found.groups()
    return Part(stage=int(stage), dps=(int(first), int(last or first)))


def mesh_note(instrumentation: Mapping[str, str]) -> str:
    """What is to be said above a drawing of the mesh, "" where its ranks have told where they stand.

    >>> mesh_note({"mesh": "unknown: ranks send to each other"})[:29]
    "The job's mesh is not known: "
    """
    kind, _, reason = instrumentation.get("mesh", "").partition(": ")
    if kind != "unknown":
        return ""
    return f"The job's mesh is not known: {reason}, and no group has a name. Ranks are drawn in their order."


def heartbeats(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """The last heartbeats that rows of `mesh_ranks` hold."""
    return [
        {**row, "attempt": row["beat_attempt"], "state": row["beat_state"]} for row in rows if row["ts_ns"]
    ]


def silent_after_ns(job: JsonObject) -> int:
    """From which age of its newest heartbeat on a rank of this job is silent. {}: a job that does not run.

    >>> silent_after_ns({"usual_silence_s": 75.0}), silent_after_ns({}) == SILENT_AFTER_NS
    (85000000000, True)
    """
    return _WRITTEN_NS + max(_USUAL_NS, int(float(job.get("usual_silence_s") or 0) * 1e9))


def points(
    topology: Sequence[JsonObject],
    states: Sequence[JsonObject],
    attribution: Attribution,
    *,
    now_ns: int,
    silent_ns: int = SILENT_AFTER_NS,
) -> list[RankPoint]:
    """Every rank of the newest attempt. A rank without a heartbeat in `silent_ns` is "no_data"."""
    last = {row["rank"]: row for row in states}
    return [_point(row, last.get(row["rank"]), attribution, now_ns, silent_ns) for row in topology]


def _point(
    row: JsonObject, heartbeat: JsonObject | None, attribution: Attribution, now_ns: int, silent_ns: int
) -> RankPoint:
    return RankPoint(
        **{
            key: row[key]
            for key in ("rank", "node", "ip", "switch", "local_rank", "tp", "pp", "dp", "cp", "ep")
        },
        state=_state(row, heartbeat, attribution, now_ns - silent_ns),
        doing="-" if heartbeat is None else _doing(heartbeat),
        last_step=-1 if heartbeat is None else heartbeat["last_step"],
        last_heartbeat="never" if heartbeat is None else ago(heartbeat["ts_ns"], now_ns),
    )


def _doing(heartbeat: JsonObject) -> str:
    """The open phase of a rank, and for how long it has been open."""
    if not heartbeat["last_phase"]:
        return "between phases"
    return f"{heartbeat['last_phase']} for {duration(heartbeat['phase_age_ns'])}"


def _state(row: JsonObject, heartbeat: JsonObject | None, attribution: Attribution, fresh_ns: int) -> str:
    blamed = attribution.state(row["rank"], row["node"])
    if blamed:
        return blamed
    if heartbeat is None or heartbeat["attempt"] < row["attempt"] or heartbeat["ts_ns"] < fresh_ns:
        return "no_data"
    if heartbeat["state"] in _BROKEN:
        return "stopped" if heartbeat["state"] == "stopped" else "gone"
    return "victim" if row["rank"] in attribution.victims else "running"


def matching(ranks: Sequence[RankPoint], find: str) -> list[RankPoint]:
    """The ranks whose number is `find`, or whose node, address or switch holds it. All of them for ""."""
    find = find.strip().lower().removeprefix("rank").strip()
    if not find:
        return list(ranks)
    if find.isdigit():
        return [r for r in ranks if r.rank == int(find)]
    return [r for r in ranks if find in f"{r.node} {r.ip} {r.switch}".lower()]


def tally(ranks: Sequence[RankPoint]) -> str:
    """How many ranks are in each state, the most urgent first: "1 culprit, 3 waits for it, 4 running"."""
    counts = Counter(r.state for r in ranks)
    order = sorted(counts, key=lambda state: -look(state, RANK_STATES).urgency)
    return ", ".join(f"{counts[state]:,} {look(state, RANK_STATES).label}" for state in order)


def figure(ranks: Sequence[RankPoint], matches: Collection[int], theme: Theme) -> go.Figure:
    """The mesh in three dimensions. Ranks in `matches` are ringed. Each state has one legend entry."""
    chart = _space(theme)
    size = 10 if len(ranks) <= 64 else 6 if len(ranks) <= 2048 else 3
    crowd = len(ranks) > 64 and any(r.state not in ("running", "victim") for r in ranks)
    _add_pipelines(chart, ranks, theme)
    for name in sorted({r.state for r in ranks}, key=lambda state: look(state, RANK_STATES).urgency):
        faint = crowd and name in ("running", "victim")
        _add_state(
            chart, [r for r in ranks if r.state == name], name, size, len(ranks) <= 64, theme, faint=faint
        )
    ringed = [r for r in ranks if r.rank in matches] if len(matches) < len(ranks) else []
    if ringed:
        marker = {"size": size + 8, "color": theme.text, "symbol": "circle-open", "line": {"width": 3}}
        chart.add_scatter3d(**_xyz(ringed), mode="markers", name="found", marker=marker, hoverinfo="skip")
    axis = {"gridcolor": theme.grid, "color": theme.muted, "showbackground": False, "dtick": _tick(ranks)}
    chart.update_layout(
        scene={
            "xaxis": axis | {"title": {"text": "tp"}, "dtick": 1},
            "yaxis": axis | {"title": {"text": "pp (stage)"}, "dtick": 1},
            "zaxis": axis | {"title": {"text": "dp"}},
            "camera": {"eye": {"x": 1.75, "y": 1.25, "z": 0.8}, "center": {"x": 0, "y": 0, "z": -0.12}},
            "aspectmode": "cube",
        }
    )
    return chart


def _space(theme: Theme) -> go.Figure:
    """An empty figure. `uirevision` keeps the camera across refreshes."""
    font = {"family": "Source Sans, sans-serif", "size": 13}
    chart = go.Figure()
    chart.update_layout(
        height=560,
        margin={"l": 8, "r": 8, "t": 20, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        font=font | {"color": theme.text},
        hoverlabel={"font": font},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "font": {"size": 12}},
        uirevision="keep",
        modebar={"orientation": "v"},
    )
    return chart


def _tick(ranks: Sequence[RankPoint]) -> int:
    return max(1, (max((r.dp for r in ranks), default=0) + 1) // 8)


def _xyz(ranks: Sequence[RankPoint]) -> dict[str, list[int]]:
    return {"x": [r.tp for r in ranks], "y": [r.pp for r in ranks], "z": [r.dp for r in ranks]}


def _add_state(
    chart: go.Figure,
    ranks: Sequence[RankPoint],
    name: str,
    size: int,
    named: bool,
    theme: Theme,
    *,
    faint: bool = False,
) -> None:
    """The ranks of one state. Those that are faint do not hide the others. The id of a point is its rank."""
    state = look(name, RANK_STATES)
    chart.add_scatter3d(
        **_xyz(ranks),
        mode="markers+text" if named else "markers",
        name=f"{state.glyph} {state.label} ({len(ranks):,})",
        ids=[str(r.rank) for r in ranks],
        text=[f"{r.rank}" for r in ranks] if named else None,
        textposition="top center",
        textfont={"color": theme.text, "size": 12},
        marker={
            "size": size / 2 if faint else size + (4 if name == "culprit" else 0),
            "opacity": 0.4 if faint else 1,
            "color": state.colour,
            "symbol": state.symbol,
        },
        customdata=[
            f"<b>rank {r.rank}</b> on {r.node}: {state.label}<br>tp {r.tp}, pp {r.pp}, dp {r.dp}<br>"
            f"{r.doing}<br>last step {r.last_step}, last heartbeat {r.last_heartbeat}"
            for r in ranks
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _add_pipelines(chart: go.Figure, ranks: Sequence[RankPoint], theme: Theme) -> None:
    """Thin lines that join the stages of each pipeline, so that the eye sees who feeds whom."""
    if len(ranks) > 512:
        return
    lines: dict[tuple[int, int], list[RankPoint]] = {}
    for rank in ranks:
        lines.setdefault((rank.tp, rank.dp), []).append(rank)
    along: dict[str, list[int | None]] = {"x": [], "y": [], "z": []}
    for pipeline in lines.values():
        for axis, values in _xyz(sorted(pipeline, key=lambda r: r.pp)).items():
            along[axis] += [*values, None]
    chart.add_scatter3d(
        **along, mode="lines", line={"color": theme.muted, "width": 2}, hoverinfo="skip", showlegend=False
    )
