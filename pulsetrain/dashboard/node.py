"""One node: state, hardware, ranks beside their cohort, findings, lines, counters, checkpoints, eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.analytics.selection import ranges
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import evictions, page, parts
from pulsetrain.dashboard.models.attribution import attribute, node_state, reason_of
from pulsetrain.dashboard.models.explore import about
from pulsetrain.dashboard.models.missing import missing_node
from pulsetrain.dashboard.models.nodes import gpu_cells, heartbeat_age_text, past_nodes, stored_gpus
from pulsetrain.dashboard.models.states import NODE_STATES, pill
from pulsetrain.dashboard.models.text import ago, duration, size
from pulsetrain.dashboard.models.times import TimeChoice, read
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import explore, past, views

_LINES = 30
_MOST_RANKS = 8
_MOST_DRAWN = 64


def show() -> None:
    """The page."""
    node = st.text_input("Node", key="node", bind="query-params", width=220, placeholder="name of a node")
    name, time = (node or "").strip(), page.chosen_time()
    if not name:
        page.empty("No node is chosen.", "Give its name, or choose one on the page Nodes.")
        return
    if page.is_missing(partial(_missing, name)):
        return
    page.live(partial(_place, name))
    page.live(partial(_findings, name), every_s=4.0)
    st.subheader("Its ranks beside their cohort", anchor=False)
    page.live(partial(_cohort, name, time), every_s=8.0)
    st.subheader("Lines of its kernel and its ranks", anchor=False)
    page.live(partial(_logs, name, time), every_s=4.0)
    st.subheader("Counters", anchor=False)
    page.live(partial(_counters, name, time), every_s=4.0)
    st.subheader("Checkpoints of its ranks", anchor=False)
    page.live(partial(_checkpoints, name), every_s=8.0)
    st.subheader("Hardware", anchor=False)
    page.live(partial(_hardware, name), every_s=8.0)
    st.subheader("Evict it", anchor=False)
    page.live(partial(evictions.of_node, name), every_s=8.0)


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""
    name = asked.get("node", "").strip()

    def work() -> None:
        if ranks := _ranks(_known(source, job, name)):
            parts.work_rows(source, job, ranks, read(asked))

    return (work, partial(source.rows, views.findings, job, limit=500)) if name else ()


def _known(source: Source, job: str, name: str) -> JsonObject:
    """The node as the hub knows it, else as it is on record. {} for a node of another job.

    Jobs of a pool share machines, and have a node of the same name each. A standby belongs to every job.
    """
    here = [n for n in _named(source, name) if not job or n.get("job") in (job, "", None)]
    if here:
        return dict(next((n for n in here if n.get("job") == job), here[0]))
    gone = next((n for n in _on_record(source, job) if n["node"] == name), {})
    return {**gone, "reason": ""} if gone and source.job(job) else gone


def _named(source: Source, name: str) -> list[JsonObject]:
    """The nodes of this name, of any job."""
    return [n for n in source.nodes() if n["node"] == name]


def _on_record(source: Source, job: str) -> list[JsonObject]:
    """The nodes that a job had, those included that it lost."""
    return past_nodes(job, source.rows(past.job_nodes, job), source.rows(past.gone_nodes, job))


def _missing(name: str) -> str:
    """That the job has no such node, and which other jobs have one. "" where it has, or had it."""
    source, job = page.source(), page.chosen_job()
    if _known(source, job, name):
        return ""
    live = [str(n["node"]) for n in source.nodes() if n.get("job") == job]
    others = [str(n["job"]) for n in _named(source, name) if n.get("job")]
    return missing_node(name, live or [str(n["node"]) for n in _on_record(source, job)], others)


def _ranks(node: JsonObject) -> tuple[int, ...]:
    return tuple(node.get("ranks") or ())[:_MOST_RANKS]


def _place(name: str) -> None:
    job = page.chosen_job()
    node = _known(page.source(), job, name)
    if not node:
        page.empty(f"No data: {name} has not taken part in this job.")
        return
    findings = page.findings(job)
    blame = attribute(findings)
    parts.facts(
        {
            "state": pill(node_state(node, blame), NODE_STATES),
            "ranks": " ".join(parts.rank_link(job, rank) for rank in node.get("ranks") or ()) or "-",
            "address": escape(str(node.get("address") or "-")),
            "heartbeat": heartbeat_age_text(node.get("last_heartbeat_age_s")),
            "reason": escape(reason_of(node, findings) or "-"),
        }
    )
    ranks = ranges((node.get("ranks") or ())[:_MOST_DRAWN])
    of_ranks = (
        ("timeline of its ranks", page.href("timeline", job=job, ranks=ranks)),
        ("stacks of its ranks", page.href("stacks", job=job, ranks=ranks)),
    )
    parts.links(
        (
            *(of_ranks if ranks else ()),
            ("all its lines", page.href("logs", job=job, node=name)),
            ("its counters over time", page.href("metrics", job=job, node=name)),
            ("what happened to it", page.href("events", job=job, text=name)),
            ("evict it", page.href("nodes", job=job, node=name)),
        )
    )


def _findings(name: str) -> None:
    job = page.chosen_job()
    rows = page.source().rows(views.findings, job, limit=500)
    parts.findings(about(rows, ranks=_known(page.source(), job, name).get("ranks") or (), node=name))


def _cohort(name: str, time: TimeChoice) -> None:
    ranks = _ranks(_known(page.source(), page.chosen_job(), name))
    if not ranks:
        page.empty("No rank runs on this node.")
        return
    parts.beside_cohort(page.chosen_job(), ranks, time)


def _logs(name: str, time: TimeChoice) -> None:
    job = page.chosen_job()
    from_ns, to_ns = parts.times(page.source(), job, time)
    wanted = explore.LogFilter(from_ns=from_ns, to_ns=to_ns, node=name, limit=_LINES)
    parts.logs(page.source().rows(explore.log_lines, job, wanted))


def _counters(name: str, time: TimeChoice) -> None:
    from_ns, to_ns = parts.times(page.source(), page.chosen_job(), time)
    parts.counters(page.source().rows(explore.node_counters, name, from_ns=from_ns, to_ns=to_ns))


def _checkpoints(name: str) -> None:
    job = page.chosen_job()
    ranks = tuple(_known(page.source(), job, name).get("ranks") or ())
    rows = page.source().rows(explore.node_checkpoints, job, ranks) if ranks else []
    if not rows:
        page.empty("No checkpoint of its ranks is on record.")
        return
    page.table(
        ["tier", "stage", "ranks", "newest step of all of them", "size", "longest", "when"],
        [
            [
                escape(row["tier"]),
                escape(row["stage"]),
                f"{row['ranks']} of {len(ranks)}",
                str(row["newest"]),
                size(row["size"]),
                duration(row["took_ns"]),
                ago(row["ts_ns"], page.now_ns()),
            ]
            for row in rows
        ],
        right=(2, 3, 4, 5, 6),
    )


def _hardware(name: str) -> None:
    """Its switch, and who its GPUs are."""
    source, job = page.source(), page.chosen_job()
    node = _known(source, job, name)
    ranks = node.get("ranks") or ()
    places = source.rows(views.topology, job, rank=ranks[0]) if ranks else []
    switch = next((str(place["switch"]) for place in places if place["switch"]), "-")
    parts.facts({"switch": escape(switch)})
    gpus: Sequence[JsonObject] = node.get("gpus") or ()
    if "gpus" not in node:  # a node that the hub does not know
        gpus = stored_gpus(source.rows(explore.node_gpus, name))
    if not gpus:
        page.empty("No GPU of this node is on record.")
        return
    page.table(
        ["GPU", "model", "UUID", "serial", "PCI address", "memory node", "NVLink domain"],
        [[escape(cell) for cell in gpu_cells(number, gpu)] for number, gpu in enumerate(gpus)],
        right=(0, 5),
    )
