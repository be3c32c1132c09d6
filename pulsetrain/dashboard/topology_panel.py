"""The chosen rank of the page Topology: where it is, its groups and peers, what it has in flight, its errors.

Every question is about one rank. Nothing is asked while none is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models import topology_rank as model
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.explore import SEVERE
from pulsetrain.dashboard.models.states import LOG_SEVERITIES, RANK_STATES, pill
from pulsetrain.dashboard.models.text import clock, fold
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.dashboard.models.topology import RankPoint, mesh_note, points, silent_after_ns
from pulsetrain.dashboard.source import Questions, Source, begin
from pulsetrain.stream.queries import explore, mesh, views

_HEARTBEATS_NS = 10 * 60 * 10**9
_STEP_SPANS = 400
_LINES = 5
_LINES_DURING = "1 day"
_LINKED = 8  # ranks of a row that are links
Ask = Callable[[], Sequence[JsonObject]]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One rank with what was asked about it. `live` is the hub's row of it, {} where it runs elsewhere."""

    point: RankPoint
    live: JsonObject
    near: Sequence[JsonObject]
    spans: Sequence[JsonObject]
    lines: Sequence[JsonObject]
    watched: bool
    silent_ns: int

    @property
    def peers(self) -> list[model.Peer]:
        """By the mesh, and by transfers that were seen."""
        by_mesh = model.mesh_peers(self.point, self.near)
        return [*by_mesh, *model.seen_transfers(self.spans, by_mesh, self.live)]


def questions(source: Source, job: str, rank: int) -> Questions:
    """What is asked first about a rank. The rest depends on the answers."""
    asked: list[Callable[[], object]] = [partial(source.rows, views.topology, job, rank=rank)]
    if source.job(job):
        asked.append(partial(source.rank, job, rank))
    return asked


def look_at(job: str, rank: int, blame: Attribution) -> Chosen | None:
    """Ask about a rank. None for one that has not told where it is. Raises `PulsetrainError`."""
    source = page.source()
    row = next(iter(source.rows(views.topology, job, rank=rank)), None)
    if row is None:
        return None
    live_job = source.job(job)
    known = not mesh_note(live_job.get("instrumentation", {}))
    ask_state = _state_question(source, job, rank, row["node"])
    ask_near = _near_question(source, job, row) if known else _nothing
    ask_spans = _spans_question(source, job, row)
    ask_lines = _line_questions(source, job, rank, row["node"])
    begin([ask_state, ask_near, ask_spans, *ask_lines])
    (point,) = points([row], ask_state(), blame, now_ns=page.now_ns(), silent_ns=silent_after_ns(live_job))
    own, of_node = (ask() for ask in ask_lines)
    return Chosen(
        point=point,
        live=source.rank(job, rank) if live_job else {},
        near=ask_near(),
        spans=ask_spans(),
        lines=model.last_lines(own, of_node),
        watched=bool(live_job),
        silent_ns=silent_after_ns(live_job),
    )


def _nothing() -> Sequence[JsonObject]:
    return []


def _state_question(source: Source, job: str, rank: int, node: str) -> Ask:
    since_ns = page.now_ns() // 10**11 * 10**11 - _HEARTBEATS_NS
    return partial(source.rows, views.rank_states, job, since_ns=since_ns, rank=rank, node=node)


def _near_question(source: Source, job: str, row: JsonObject) -> Ask:
    """The ranks along each axis, nothing for a rank without coordinates."""
    if min(row["tp"], row["pp"], row["dp"]) < 0:
        return _nothing
    at = tuple(row[axis] for axis in model.AXES)
    ordered = (at[0], at[1], at[2], at[3], at[4])
    return partial(source.rows, mesh.mesh_peers, job, rank=row["rank"], at=ordered)


def _spans_question(source: Source, job: str, row: JsonObject) -> Ask:
    """The spans of its last steps: what is open, and whom it sent to."""
    newest = next((int(r["last_step"]) for r in source.rows(views.jobs) if r["job"] == job), None)
    if newest is None:
        return _nothing
    steps = {"first": max(0, newest - 1), "last": newest + 1}
    ask = partial(source.rows, views.spans, job, ranks=(row["rank"],), limit=_STEP_SPANS, **steps)
    return lambda: [span for span in ask() if span["attempt"] == row["attempt"]]


def _line_questions(source: Source, job: str, rank: int, node: str) -> tuple[Ask, Ask]:
    """Error lines of the rank, and of its node."""
    from_ns, to_ns = parts.times(source, job, TimeChoice(last=_LINES_DURING))
    wanted = partial(
        explore.LogFilter, from_ns=from_ns, to_ns=to_ns, node=node, severities=SEVERE["errors"], limit=_LINES
    )
    return (
        partial(source.rows, explore.log_lines, job, wanted(ranks=(rank,))),
        partial(source.rows, explore.log_lines, job, wanted()),
    )


def draw(job: str, chosen: Chosen, closed: str) -> None:
    """The panel. `closed` is the address of the page without it."""
    me = chosen.point
    links = (
        ("all about it", page.href("rank", job=job, rank=me.rank)),
        ("timeline", page.href("timeline", job=job, ranks=me.rank)),
        ("its lines", page.href("logs", job=job, ranks=me.rank)),
        ("close", closed),
    )
    words = " · ".join(f'<a href="{escape(href)}">{word}</a>' for word, href in links)
    st.html(
        f'<div id="chosen-rank"><b>Rank {me.rank}</b> {pill(me.state, RANK_STATES)} '
        f'<span class="links">{words}</span></div>'
    )
    parts.facts(
        {
            "node": parts.node_link(job, me.node),
            "switch": escape(me.switch) or "-",
            "local rank": str(me.local_rank),
            **{axis: str(getattr(me, axis)) if getattr(me, axis) >= 0 else "-" for axis in model.AXES},
            "last step": str(me.last_step) if me.last_step >= 0 else "-",
            "doing": escape(me.doing),
        }
    )
    _in_flight(chosen)
    _peers(job, chosen)
    _groups(chosen)
    _lines(job, chosen.lines)


def _title(text: str) -> None:
    st.html(f"<div><b>{text}</b></div>")


def _in_flight(chosen: Chosen) -> None:
    _title("In flight")
    if chosen.live:
        found = model.in_flight(chosen.live, page.now_ns(), chosen.silent_ns)
    elif chosen.watched:
        found = model.InFlight(sentence="Not known: the hub does not say what this rank has in flight.")
    else:
        found = model.stored_in_flight(chosen.spans)
    more = "".join(f"<br>{escape(each)}" for each in found.operations)
    st.html(f'<div id="in-flight">{escape(found.sentence)}{more}</div>')


def _peers(job: str, chosen: Chosen) -> None:
    _title("Peers, and which way data goes")
    lines = model.peer_lines(chosen.point, chosen.near, chosen.peers)
    if not lines:
        page.empty("Not known: neither the mesh nor a send or recv names a peer.")
        return
    page.table(
        ["peers", "ranks", "data"],
        [[escape(line.relation), _rank_links(job, line), escape(line.data)] for line in lines],
    )
    st.html(
        '<div class="muted" style="white-space:normal">By the mesh. "Seen" is a send or recv of the last '
        "steps. In which ring or tree a collective goes through its group is not known.</div>"
    )


def _rank_links(job: str, line: model.PeerLine) -> str:
    if not line.ranks:
        return "none"
    if len(line.ranks) > _LINKED:
        some = "" if line.in_all == len(line.ranks) else f", the nearest of {line.in_all:,}"
        return escape(fold(line.ranks) + some)
    return ", ".join(f'<a href="{escape(address(job, rank))}">{rank}</a>' for rank in line.ranks)


def address(job: str, rank: int | str) -> str:
    """The page as it is now, with this rank chosen. "" for none."""
    kept = {name: st.session_state.get(name) or "" for name in ("show", "find", "block")}
    kept["show"] = "" if kept["show"] == "3-D" else kept["show"]
    return page.href("topology", job=job, **kept, rank=rank)


def _groups(chosen: Chosen) -> None:
    _title("Process groups")
    me = chosen.point
    if chosen.live:
        lines = model.group_lines(chosen.live, me.rank, chosen.near)
    else:
        lines = model.stored_group_lines(chosen.spans, me.rank, chosen.near)
    if not lines:
        page.empty("Not known: no process group of this rank is on record.")
        return
    page.table(
        ["group", "for", "size", "members", "newest"],
        [
            [escape(each.name), escape(each.kind), each.size, escape(each.members), escape(each.newest)]
            for each in lines
        ],
        right=(2,),
    )


def _lines(job: str, lines: Sequence[JsonObject]) -> None:
    _title(f"Error lines of the rank and its node in the last {_LINES_DURING.removeprefix('1 ')}")
    if not lines:
        st.html('<div class="muted">None is on record.</div>')
        return
    page.table(
        ["time (UTC)", "severity", "rank", "line"],
        [
            [
                clock(row["ts_ns"]),
                pill(row["severity"], LOG_SEVERITIES),
                parts.rank_link(job, row["rank"]),
                f"<code>{escape(row['message'][:300])}</code>",
            ]
            for row in lines
        ],
        right=(2,),
    )
