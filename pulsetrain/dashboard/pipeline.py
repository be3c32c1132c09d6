"""Pipeline: is the monitoring itself healthy? Spools, drops, heartbeats, and what the store holds."""

from __future__ import annotations

from html import escape

import streamlit as st

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.detectors import detectors
from pulsetrain.dashboard.models.nodes import heartbeat_age_text, ordered_nodes
from pulsetrain.dashboard.models.pipeline import gauge_text, hub_facts, ordered_loops
from pulsetrain.dashboard.models.states import DETECTOR_STATES, pill
from pulsetrain.dashboard.models.text import size, thousands
from pulsetrain.stream.queries import views

_LOOPS = 50


def show() -> None:
    """The page."""
    page.live(_hub)
    st.subheader("Detectors", anchor=False)
    page.live(_detectors)
    st.subheader("Loops", anchor=False)
    page.live(_loops)
    st.subheader("Agents", anchor=False)
    page.live(_agents)
    st.subheader("Store", anchor=False)
    page.live(_store, every_s=10.0)


def _hub() -> None:
    facts = hub_facts(page.source().status().get("hub", {}), page.now_ns())
    cells = "".join(f"<div><span>{escape(k)}</span><b>{escape(v)}</b></div>" for k, v in facts.items())
    st.html(f'<div class="figures">{cells}</div>')


def _detectors() -> None:
    """Say which detectors see the data they need. One that does not cannot find anything."""
    rows = detectors(page.source().job(page.chosen_job()).get("detectors", []))
    if not rows:
        page.empty("No data: no detector has looked at this job yet.")
        return
    page.table(
        ["detector", "state", "why"],
        [[escape(r["name"]), pill(r["state"], DETECTOR_STATES), escape(r["reason"] or "-")] for r in rows],
    )


def _loops() -> None:
    """Draw the loops of the hub and of agents, those that are late or fail first."""
    rows = ordered_loops(page.source().status().get("loops", []))
    if not rows:
        page.empty("No data: this hub reports no loops.")
        return
    page.table(
        ["process", "node", "loop", "last turn", "failures", "last error"],
        [
            [
                escape(row["process"]),
                escape(row["node"]) or "-",
                escape(row["loop"]),
                heartbeat_age_text(row["age_s"]) + (" (late)" if row["stale"] else ""),
                thousands(row["failures"]),
                escape(row["last_error"]) or "-",
            ]
            for row in rows[:_LOOPS]
        ],
        right=(3, 4),
    )


def _agents() -> None:
    nodes = ordered_nodes(page.source().nodes(), job="")
    if not nodes:
        page.empty("No data: no agent has connected to this hub.")
        return
    gauges = sorted({name for node in nodes for name in node.get("gauges", {})})
    page.table(
        ["node", "last heartbeat", *(name.replace("_", " ") for name in gauges)],
        [
            [
                escape(str(node["node"])),
                heartbeat_age_text(node.get("last_heartbeat_age_s")),
                *(gauge_text(name, node.get("gauges", {}).get(name)) for name in gauges),
            ]
            for node in nodes[:300]
        ],
        right=tuple(range(1, 2 + len(gauges))),
    )


def _store() -> None:
    try:
        rows = page.source().rows(views.stored)
    except PulsetrainError as error:
        page.empty(f"No data: {error}.")
        return
    page.table(
        ["record", "rows", "on disk"],
        [[escape(r["record"]), f"{r['rows']:,}", size(r["bytes"])] for r in rows],
        right=(1, 2),
    )
