"""The dashboard's entry: `streamlit run app.py`, as `dashboard.launch.command` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import streamlit as st

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.dashboard import (
    alerts,
    checkpoints,
    events,
    heatmap,
    incidents,
    logs,
    metrics,
    node,
    nodes,
    overview,
    page,
    pipeline,
    pool,
    rank,
    recovery,
    stacks,
    timeline,
    topology,
)
from pulsetrain.dashboard.ahead import begin_page
from pulsetrain.dashboard.models.alerts import open_alerts
from pulsetrain.dashboard.source import Source

_HERE = Path(__file__).parent
_LAST_HOUR, _ALL, _NEWEST = "default: 1 hour", "default: all", "default: newest steps"
_USUAL_TIME = {
    "overview": _ALL, "heatmap": _NEWEST, "timeline": _NEWEST, "incidents": _ALL, "alerts": _ALL,
    "rank": _LAST_HOUR, "node": _LAST_HOUR, "logs": _LAST_HOUR, "metrics": _LAST_HOUR, "events": _LAST_HOUR,
    "recovery": _ALL, "checkpoints": _NEWEST,
}  # fmt: skip
"""Pages about a time range, by their place in the address, and what they show where none is chosen."""


def main() -> None:
    """One run of the script: a browser opened a page, or an operator chose something."""
    st.set_page_config(page_title="Pulsetrain", page_icon=str(_HERE / "icon.svg"), layout="wide")
    st.html(_HERE / "style.css")
    st.html(f"<style>:root {{ --head: {page.theme().head}; }}</style>")
    st.logo(str(_HERE / "logo.svg"))
    try:
        _begin(page.source())
    except PulsetrainError as error:
        page.empty(f"{error}.")
        return
    pages = {
        "overview": st.Page(overview.show, title="Overview", default=True),
        "alias": st.Page(overview.show, title="Overview", url_path="overview", visibility="hidden"),
        "heatmap": st.Page(heatmap.show, title="Heatmap", url_path="heatmap"),
        "timeline": st.Page(timeline.show, title="Timeline", url_path="timeline"),
        "topology": st.Page(topology.show, title="Topology", url_path="topology"),
        "incidents": st.Page(incidents.show, title="Incidents", url_path="incidents"),
        "stacks": st.Page(stacks.show, title="Stacks", url_path="stacks"),
        "alerts": st.Page(alerts.show, title=_alerts_title(), url_path="alerts"),
        "nodes": st.Page(nodes.show, title="Nodes", url_path="nodes"),
        "rank": st.Page(rank.show, title="Rank", url_path="rank", visibility="hidden"),
        "node": st.Page(node.show, title="Node", url_path="node", visibility="hidden"),
        "logs": st.Page(logs.show, title="Logs", url_path="logs"),
        "metrics": st.Page(metrics.show, title="Metrics", url_path="metrics"),
        "events": st.Page(events.show, title="Events", url_path="events"),
        "recovery": st.Page(recovery.show, title="Recovery", url_path="recovery"),
        "checkpoints": st.Page(checkpoints.show, title="Checkpoints", url_path="checkpoints"),
        "pipeline": st.Page(pipeline.show, title="Pipeline", url_path="pipeline"),
        "pool": st.Page(pool.show, title="Pool", url_path="pool", visibility=_pool_visibility()),
    }
    st.session_state["pages"] = pages
    chosen = st.navigation(list(pages.values()), position="top")
    if chosen is pages["alias"]:
        st.switch_page(pages["overview"], query_params=st.query_params.to_dict())
    if "go" in st.session_state:
        name, params = st.session_state.pop("go")
        if chosen is not pages[name]:
            st.switch_page(pages[name], query_params=params)
        st.session_state.update({key: value for key, value in params.items() if key != "job"})
    name = chosen.url_path or "overview"
    page.keep_time(name)
    page.strip(sentence=chosen is not pages["overview"], usual_time=_USUAL_TIME.get(name, ""))
    chosen.run()


def _begin(source: Source) -> None:
    """Ask what every page needs and what this one is going to, before the first of them is waited for."""
    job = str(st.query_params.get("job") or st.session_state.get("last_job", ""))
    begin_page(source, urlsplit(st.context.url or "").path, job, st.query_params.to_dict())


def _pool_visibility() -> Literal["visible", "hidden"]:
    """A hub without a pool does not offer the page."""
    try:
        return "visible" if page.source().status().get("pool") else "hidden"
    except PulsetrainError:
        return "hidden"


def _alerts_title() -> str:
    try:
        count = open_alerts(page.source().alerts())
    except PulsetrainError:
        return "Alerts"
    return f"Alerts ({count})" if count else "Alerts"


main()
