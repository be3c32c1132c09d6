"""Topology: the mesh in three dimensions and as a table. The culprit looks different from ranks that wait."""

from __future__ import annotations

from functools import partial
from html import escape

import streamlit as st

from pulsetrain.dashboard import page
from pulsetrain.dashboard.models import topology as model
from pulsetrain.dashboard.models.states import RANK_STATES, look, pill
from pulsetrain.stream.queries import views

_TABLE_ROWS = 500
_WIDE = (
    "rank",
    "state",
    "node",
    "address",
    "switch",
    "local_rank",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "doing",
    "last step",
    "last heartbeat",
)
_NARROW = ("rank", "state", "node", "tp", "pp", "dp", "doing", "last step")
_NUMBERS = ("rank", "local_rank", "tp", "pp", "dp", "cp", "ep", "last step", "last heartbeat")
_HEARTBEATS_NS = 10 * 60 * 10**9


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        as_ = st.segmented_control(
            "Show", ["3-D", "table"], default="3-D", required=True, key="show", bind="query-params"
        )
        find = st.text_input(
            "Find", key="find", bind="query-params", width=220, placeholder="rank, node, address or switch"
        )
    page.live(partial(_body, str(as_), find or ""))


def _body(shown: str, find: str) -> None:
    job = page.chosen_job()
    now = page.now_ns()
    topology = page.source().rows(views.topology, job) if job else []
    if not topology:
        page.empty(
            "No data: no rank of this job has reported its mesh coordinates.",
            "A rank reports them when it calls pulsetrain.init().",
        )
        return
    since = now // 10**11 * 10**11 - _HEARTBEATS_NS  # in whole 100 s, so that the answer can be kept
    states = page.source().rows(views.rank_states, job, since_ns=since)
    attribution = model.attribute(page.source().job(job).get("findings", []))
    ranks = model.points(topology, states, attribution, now_ns=now)
    hits = model.matching(ranks, find)
    st.html(
        f"<div><b>{model.tally(ranks)}.</b> <span class='muted'>{escape(attribution.sentence)}</span></div>"
    )
    in_mesh = [r for r in ranks if r.has_coordinates]
    if shown == "table" or not in_mesh:
        _table(hits, _WIDE)
        return
    mesh, names = st.columns([3, 2])
    with mesh:
        figure = model.figure(in_mesh, {r.rank for r in hits} if find else set(), page.theme())
        page.chart(figure, key="mesh", alt="Ranks in the tensor, pipeline and data parallel mesh, by state")
    with names:
        _table(hits, _NARROW)


def _table(ranks: list[model.RankPoint], columns: tuple[str, ...]) -> None:
    if not ranks:
        page.empty("No rank, node, address or switch matches.")
        return
    urgent = sorted(ranks, key=lambda r: (-look(r.state, RANK_STATES).urgency, r.rank))
    if len(urgent) > _TABLE_ROWS:
        st.html(f"<div class='muted'>The {_TABLE_ROWS} most urgent of {len(urgent):,} ranks.</div>")
    cells = [_cells(rank) for rank in urgent[:_TABLE_ROWS]]
    page.table(
        list(columns),
        [[row[name] for name in columns] for row in cells],
        right=tuple(i for i, name in enumerate(columns) if name in _NUMBERS),
    )


def _cells(r: model.RankPoint) -> dict[str, str]:
    return {
        "rank": f'<a href="{page.href("timeline", job=page.chosen_job(), ranks=r.rank)}">{r.rank}</a>',
        "state": pill(r.state, RANK_STATES),
        "node": escape(r.node),
        "address": escape(r.ip),
        "switch": escape(r.switch) or "-",
        **{name: str(getattr(r, name)) for name in ("local_rank", "tp", "pp", "dp", "cp", "ep")},
        "doing": escape(r.doing),
        "last step": str(r.last_step) if r.last_step >= 0 else "-",
        "last heartbeat": escape(r.last_heartbeat),
    }
