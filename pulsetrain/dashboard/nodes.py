"""Nodes: state, heartbeat, ranks. And evictions and moves, which show their cost first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import evictions, moves, page
from pulsetrain.dashboard.models.attribution import attribute, node_state, reason_of
from pulsetrain.dashboard.models.nodes import (
    can_be_evicted,
    heartbeat_age_text,
    ordered_nodes,
    past_nodes,
    ranks_text,
)
from pulsetrain.dashboard.models.states import NODE_STATES, pill
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import past

_ROWS = 300


def show() -> None:
    """The page."""
    find = st.text_input("Find", key="find", bind="query-params", width=220, placeholder="node or address")
    page.live(partial(_list, find or ""))
    page.live(_eviction, every_s=5.0)
    page.live(moves.show, every_s=5.0)


def ahead(source: Source, job: str, _asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""
    return (source.nodes,)


def _list(find: str) -> None:
    job = page.chosen_job()
    findings = page.findings(job)
    blame = attribute(findings)
    known = [
        {**node, "state": node_state(node, blame), "reason": reason_of(node, findings)}
        for node in _known(job)
    ]
    nodes = ordered_nodes(known, job=job, find=find)
    if not nodes:
        page.empty("No node matches." if find else "No data: no agent has connected to this hub.")
        return
    if len(nodes) > _ROWS:
        st.html(
            f"<div class='muted'>The {_ROWS} most urgent of {len(nodes):,} nodes. Use Find for another.</div>"
        )
    page.table(
        ["node", "state", "node rank", "ranks", "address", "heartbeat", "reason"],
        [_row(node) for node in nodes[:_ROWS]],
        right=(2, 5),
    )


def _known(job: str) -> Sequence[JsonObject]:
    """The nodes of the hub, and those on record of a job that it does not run."""
    present = page.source().nodes()
    if not job or any(node.get("job") == job for node in present):
        return present
    source = page.source()
    return [*present, *past_nodes(job, source.rows(past.job_nodes, job), source.rows(past.gone_nodes, job))]


def _row(node: JsonObject) -> list[str]:
    rank = node.get("node_rank", -1)
    age = node.get("last_heartbeat_age_s")
    name = str(node["node"])
    return [
        f'<a href="{page.href("node", job=page.chosen_job(), node=name)}">{escape(name)}</a>',
        pill(str(node.get("state", "")), NODE_STATES),
        str(rank) if rank >= 0 else "-",
        escape(ranks_text(node.get("ranks"))),
        escape(str(node.get("address") or "-")),
        heartbeat_age_text(age),
        escape(str(node.get("reason") or "-")),
    ]


def _eviction() -> None:
    """Choose, look at the cost, give a reason, confirm."""
    st.subheader("Evict a node", anchor=False)
    names = [
        str(n["node"])
        for n in ordered_nodes(page.source().nodes(), job=page.chosen_job())
        if can_be_evicted(n)
    ]
    evictions.tell()
    named = st.query_params.get("node", "")
    if named and named not in names:
        names = [named, *names]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        node = st.selectbox(
            "Node",
            sorted(names),
            index=None,
            key="node",
            bind="query-params",
            width=260,
            placeholder="choose a node",
        )
        evictions.ask(node)
    evictions.confirm(node, _choose_none)


def _choose_none() -> None:
    st.session_state["node"] = None
