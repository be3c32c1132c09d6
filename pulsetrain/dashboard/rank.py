"""One rank: where it is, how it works beside its cohort, findings, stack, lines, counters, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import evictions, page, parts
from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.explore import about
from pulsetrain.dashboard.models.missing import missing_rank
from pulsetrain.dashboard.models.stacks import of_ranks
from pulsetrain.dashboard.models.states import RANK_STATES, pill
from pulsetrain.dashboard.models.text import ago, duration, size
from pulsetrain.dashboard.models.times import TimeChoice, read
from pulsetrain.dashboard.models.topology import points, silent_after_ns
from pulsetrain.dashboard.models.topology_rank import rank_in
from pulsetrain.dashboard.source import Questions, Source
from pulsetrain.stream.queries import explore, past, views

_LINES = 30
_HEARTBEATS_NS = 10 * 60 * 10**9


def show() -> None:
    """The page."""
    named = st.text_input("Rank", key="rank", bind="query-params", width=120, placeholder="0")
    time = page.chosen_time()
    try:
        rank = rank_in(named or "") or 0
    except UsageError as error:
        st.warning(str(error))
        return
    if page.is_missing(partial(_missing, rank)):
        return
    page.live(partial(_place, rank))
    page.live(partial(_findings, rank), every_s=4.0)
    st.subheader("Beside its cohort", anchor=False)
    page.live(partial(_cohort, rank, time), every_s=8.0)
    st.subheader("Stack", anchor=False)
    page.live(partial(_stack, rank), every_s=4.0)
    st.subheader("Lines of the rank and of its node's kernel", anchor=False)
    page.live(partial(_logs, rank, time), every_s=4.0)
    st.subheader("Counters of its node", anchor=False)
    page.live(partial(_counters, rank, time), every_s=8.0)
    st.subheader("Checkpoints", anchor=False)
    page.live(partial(_checkpoints, rank), every_s=8.0)
    st.subheader("Evict its node", anchor=False)
    page.live(partial(_eviction, rank), every_s=8.0)


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""
    try:
        rank = rank_in(asked.get("rank", "")) or 0
    except UsageError:
        return ()  # the page says what is wrong
    return (
        partial(source.rows, views.topology, job, rank=rank),
        partial(source.rows, views.findings, job, limit=500),
        partial(parts.work_rows, source, job, (rank,), read(asked)),
        partial(source.rows, explore.rank_checkpoints, job, rank),
    )


def _missing(rank: int) -> str:
    """That the job has no such rank. "" where it has, or had it in an earlier attempt."""
    source, job = page.source(), page.chosen_job()
    stored = next((int(row["ranks"]) for row in source.rows(views.jobs) if row["job"] == job), 0)
    live = int(source.job(job).get("world_size", 0))
    if rank < max(live, stored):
        return ""
    if live:
        return missing_rank(rank, range(max(live, stored)))
    return missing_rank(rank, [r for row in source.rows(past.job_nodes, job) for r in row["ranks"]])


def _where(job: str, rank: int) -> JsonObject | None:
    """Its row of the topology. None where it has not reported."""
    return next(iter(page.source().rows(views.topology, job, rank=rank)), None)


def _place(rank: int) -> None:
    """Where it is and what it does now."""
    job = page.chosen_job()
    row = _where(job, rank)
    if row is None:
        page.empty(f"No data: rank {rank} of this job has not reported where it is.")
        return
    now = page.now_ns()
    since_ns = now // 10**11 * 10**11 - _HEARTBEATS_NS
    beats = page.source().rows(views.rank_states, job, since_ns=since_ns, rank=rank, node=row["node"])
    blame = attribute(page.findings(job))
    (point,) = points([row], beats, blame, now_ns=now, silent_ns=silent_after_ns(page.source().job(job)))
    parts.facts(
        {
            "state": pill(point.state, RANK_STATES),
            "node": parts.node_link(job, point.node),
            "local rank": str(point.local_rank),
            **{name: str(getattr(point, name)) for name in ("tp", "pp", "dp", "cp", "ep")},
            "switch": escape(point.switch) or "-",
            "last step": str(point.last_step) if point.last_step >= 0 else "-",
            "doing": escape(point.doing),
            "last heartbeat": escape(point.last_heartbeat),
        }
    )
    links = (
        ("timeline", page.href("timeline", job=job, ranks=rank)),
        ("all its lines", page.href("logs", job=job, ranks=rank)),
        ("all stacks", page.href("stacks", job=job)),
        ("counters over time", page.href("metrics", job=job, node=point.node)),
        ("evict its node", page.href("nodes", job=job, node=point.node)),
    )
    parts.links(links)


def _findings(rank: int) -> None:
    """Those about the rank, and those about its node, whose state it wears."""
    job = page.chosen_job()
    rows, row = page.source().rows(views.findings, job, limit=500), _where(job, rank)
    parts.findings(about(rows, ranks=(rank,), node=row["node"] if row else ""))


def _cohort(rank: int, time: TimeChoice) -> None:
    parts.beside_cohort(page.chosen_job(), (rank,), time)


def _stack(rank: int) -> None:
    """The frames in which the rank stands, alone or with others."""
    job = page.chosen_job()
    reading = page.source().stacks(job) if page.source().job(job) else {}
    if not reading:
        page.empty("No stack was read.", "Stacks are read when the job falls silent, or on the page Stacks.")
        return
    lines = _path(of_ranks(reading["tree"][:1], (rank,)))
    st.html(f'<div class="muted">Read {ago(int(reading["ts_ns"]), page.now_ns())}.</div>')
    page.table(
        ["ranks", "frame"], [[escape(ranks), f"<code>{escape(frame)}</code>"] for ranks, frame in lines]
    )


def _path(tree: list[JsonObject]) -> list[tuple[str, str]]:
    """(ranks, frame) from the outermost frame to the innermost. `tree` is that of one rank."""
    return [
        line
        for branch in tree[:1]
        for line in ((str(branch["ranks"]), str(branch["frame"])), *_path(branch["children"]))
    ]


def _logs(rank: int, time: TimeChoice) -> None:
    job = page.chosen_job()
    from_ns, to_ns = parts.times(page.source(), job, time)
    wanted = explore.LogFilter(from_ns=from_ns, to_ns=to_ns, ranks=(rank,), limit=_LINES)
    parts.logs(page.source().rows(explore.log_lines, job, wanted))


def _counters(rank: int, time: TimeChoice) -> None:
    job = page.chosen_job()
    row = _where(job, rank)
    if row is None:
        page.empty("No data: it is not known where the rank runs.")
        return
    from_ns, to_ns = parts.times(page.source(), job, time)
    parts.counters(page.source().rows(explore.node_counters, row["node"], from_ns=from_ns, to_ns=to_ns))


def _eviction(rank: int) -> None:
    row = _where(page.chosen_job(), rank)
    if row is None:
        page.empty("No data: it is not known where the rank runs.")
        return
    evictions.of_node(row["node"])


def _checkpoints(rank: int) -> None:
    rows = page.source().rows(explore.rank_checkpoints, page.chosen_job(), rank)
    if not rows:
        page.empty("No checkpoint of this rank is on record.")
        return
    page.table(
        ["tier", "stage", "newest step", "size", "took", "when"],
        [
            [
                escape(row["tier"]),
                escape(row["stage"]),
                str(row["newest"]),
                size(row["size"]),
                duration(row["took_ns"]),
                ago(row["ts_ns"], page.now_ns()),
            ]
            for row in rows
        ],
        right=(2, 3, 4, 5),
    )
