"""Topology: the mesh as a grid of blocks, in three dimensions and as a table.

The culprit looks different from ranks that wait. A job of more than 512 ranks is shown as a grid of stage by
block of data-parallel replicas, and a click shows one block rank by rank. A click on a rank opens its panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from html import escape

import pyarrow as pa
import streamlit as st

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, rank_clicks, topology_panel
from pulsetrain.dashboard.models import mesh as grid_model
from pulsetrain.dashboard.models import topology as model
from pulsetrain.dashboard.models import topology_arrows, topology_rank
from pulsetrain.dashboard.models.attribution import Attribution, attribute
from pulsetrain.dashboard.models.states import RANK_STATES, look, pill
from pulsetrain.dashboard.snapshot import take_snapshot
from pulsetrain.dashboard.source import Questions, Source, begin
from pulsetrain.stream.queries import mesh
from pulsetrain.stream.store.clickhouse import Store

_BESIDE = 60
_BLOCKS_LISTED = 128
_REFRESH_S = 4.0
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
_SILENT_NS = 60 * 10**9  # so long before it fell silent a rank's last heartbeat is still found
_ROUND_NS = 2 * 10**9


def _lately(view: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    """A view of the last heartbeats. Which those are is not part of the question: an answer a moment later
    is as good. From the age `silent_ns` on they are silence."""

    @wraps(view)
    def asked(store: Store, *args: object, silent_ns: int, **options: object) -> pa.Table:
        fresh_ns = page.now_ns() - silent_ns
        heard = {"since_ns": fresh_ns - _SILENT_NS, "fresh_ns": fresh_ns}
        return view(store, *args, **heard, **options)

    return asked


_BLOCKS, _IN_MESH = _lately(mesh.mesh_blocks), _lately(mesh.mesh_ranks)


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        as_ = st.segmented_control(
            "Show", ["3-D", "table"], default="3-D", required=True, key="show", bind="query-params"
        )
        find = st.text_input(
            "Find", key="find", bind="query-params", width=220, placeholder="rank, node, address or switch"
        )
        block = st.text_input(
            "Block", key="block", bind="query-params", width=170, placeholder="3/40-47",
            help="A part of a large job: stage/replicas. Empty: the whole job.",
        )  # fmt: skip
        named = st.text_input(
            "Rank", key="rank", bind="query-params", width=110, placeholder="371",
            help="Its groups, peers and errors, as a click on it shows them. Empty: none.",
        )  # fmt: skip
    try:
        part = model.part_of((block or "").strip())
        rank = topology_rank.rank_in(named or "")
    except UsageError as error:
        st.warning(str(error))
        return
    page.live(partial(_body, str(as_), (find or "").strip(), part, rank), every_s=_REFRESH_S)


def _body(shown: str, find: str, part: model.Part | None, rank: int | None) -> None:
    job, source = page.chosen_job(), page.source()
    now = page.now_ns() // _ROUND_NS * _ROUND_NS
    blame = attribute(page.findings(job))
    silent_ns = model.silent_after_ns(source.job(job))
    ask_blocks = partial(source.rows, _BLOCKS, job, silent_ns=silent_ns)
    ahead_of_panel = topology_panel.questions(source, job, rank) if job and rank is not None else ()
    begin([ask_blocks, *ahead_of_panel] if job else [])
    rows = _in_mesh(source, job, blame, find, part) if job else []
    blocks = ask_blocks() if job else []
    if not rows and not find:
        page.empty(
            "No data: no rank of this job has reported its mesh coordinates.",
            "A rank reports them when it calls pulsetrain.init().",
        )
        return
    page.tell_unknown_mesh(job)
    ranks = model.points(rows, model.heartbeats(rows), blame, now_ns=now, silent_ns=silent_ns)
    in_all = rows[0]["ranks_in_all"] if rows else 0
    panel = partial(_panel, job, rank, blame) if rank is not None else _no_panel
    if blocks and part is None and sum(row["ranks"] for row in blocks) > mesh.MOST_RANKS:
        _grid(job, blocks, rows, blame, ranks, panel)
        return
    st.html(f"<div><b>{model.tally(ranks)}.</b> <span class='muted'>{escape(blame.sentence)}</span></div>")
    if in_all > len(ranks):
        st.html(f"<div class='muted'>{len(ranks):,} of {in_all:,} ranks, the most urgent first.</div>")
    _ranks(job, shown, find, ranks, panel)


Panel = Callable[[], topology_panel.Chosen | None]
"""Draws the chosen rank where it is called, and returns what it drew."""


def _no_panel() -> topology_panel.Chosen | None:
    return None


def _panel(job: str, rank: int, blame: Attribution) -> topology_panel.Chosen | None:
    with st.container(border=True, key="rank_panel"):
        closed = topology_panel.address(job, "")
        try:
            chosen = topology_panel.look_at(job, rank, blame)
        except PulsetrainError as error:
            page.empty(f"Rank {rank}: {error}.")
            return None
        if chosen is None:
            page.empty(f"No data: rank {rank} of this job has not reported where it is.")
            return None
        topology_panel.draw(job, chosen, closed)
        return chosen


def ahead(source: Source, job: str, asked: Mapping[str, str]) -> Questions:
    """What the page is going to ask."""

    def ranks() -> None:
        blame = attribute(take_snapshot(source).findings(job))
        part = model.part_of(asked.get("block", "").strip())
        _in_mesh(source, job, blame, asked.get("find", "").strip(), part)

    def blocks() -> None:
        source.rows(_BLOCKS, job, silent_ns=model.silent_after_ns(source.job(job)))

    return (ranks, blocks, *_ahead_of_panel(source, job, asked.get("rank", "")))


def _ahead_of_panel(source: Source, job: str, named: str) -> Questions:
    try:
        rank = topology_rank.rank_in(named)
    except UsageError:
        return ()  # the page says what is wrong
    return () if rank is None else topology_panel.questions(source, job, rank)


def _in_mesh(
    source: Source, job: str, blame: Attribution, find: str, part: model.Part | None
) -> Sequence[JsonObject]:
    """The most urgent ranks of the job, or of a part of it."""
    chosen = {"stage": part.stage, "dps": part.dps} if part else {}
    return source.rows(
        _IN_MESH, job, silent_ns=model.silent_after_ns(source.job(job)), named=tuple(sorted(blame.ranks)),
        nodes=tuple(sorted({*blame.nodes, *blame.parts})),
        find=find.lower().removeprefix("rank").strip(), **chosen,
    )  # fmt: skip


def _grid(
    job: str,
    rows: Sequence[JsonObject],
    named: Sequence[JsonObject],
    blame: Attribution,
    ranks: list[model.RankPoint],
    panel: Panel,
) -> None:
    """The whole of a large job, and beside it the ranks that need a look, and the chosen one."""
    blamed = [r for r in named if blame.state(r["rank"], r["node"])]
    st.html(
        f"<div><b>{grid_model.tally(rows, blame, blamed)}.</b> "
        f"<span class='muted'>{escape(_ended(blame.sentence))} Click a block to see its ranks.</span></div>"
    )
    shown = grid_model.blocks(rows, blamed, blame)
    chart, names = st.columns([3, 2])
    with chart:
        clicked = page.clickable_chart(
            grid_model.grid_chart(shown, page.theme()), key="blocks",
            alt=f"Pipeline stages by blocks of data-parallel replicas. {blame.sentence}",
        )  # fmt: skip
    block = grid_model.selected(shown, clicked)
    if block is not None:
        page.open_page("topology", job=job, block=f"{block.stage}/{block.dps[0]}-{block.dps[1]}")
    with names:
        panel()
        _table(ranks[:_BESIDE], _NARROW)
    with st.expander("The blocks as a table"):
        _block_table(job, shown)


def _block_table(job: str, shown: Sequence[grid_model.Block]) -> None:
    """The blocks, the most urgent first. A link leads where a click on the block does."""
    urgent = sorted(shown, key=lambda b: (-look(b.state, RANK_STATES).urgency, b.stage, b.place))
    if len(urgent) > _BLOCKS_LISTED:
        more = f"{_BLOCKS_LISTED} of {len(urgent):,} blocks. The field Block shows any other."
        st.html(f"<div class='muted'>{more}</div>")
    page.table(
        ["stage", "replicas", "state", "ranks", "at fault"],
        [_block_row(job, block) for block in urgent[:_BLOCKS_LISTED]],
        right=(0, 3),
    )


def _block_row(job: str, block: grid_model.Block) -> list[str]:
    first, last = block.dps
    address = page.href("topology", job=job, block=f"{block.stage}/{first}-{last}")
    return [
        str(block.stage),
        f'<a href="{escape(address)}">{first}-{last}</a>',
        pill(block.state, RANK_STATES),
        f"{block.ranks:,}",
        escape(block.named) or "-",
    ]


def _ended(sentence: str) -> str:
    return f"{sentence}." if sentence and not sentence.endswith(".") else sentence


def _ranks(job: str, shown: str, find: str, ranks: list[model.RankPoint], panel: Panel) -> None:
    """At most 512 ranks, in three dimensions with a table beside them, or as a wide table."""
    in_mesh = [r for r in ranks if r.has_coordinates]
    if shown == "table" or not in_mesh:
        panel()
        _table(ranks, _WIDE)
        return
    space, names = st.columns([3, 2])
    with names:
        chosen = panel()
        _table(ranks, _NARROW)
    with space:
        figure = model.figure(in_mesh, {r.rank for r in ranks} if find else set(), page.theme())
        if chosen is not None and chosen.point.has_coordinates:
            there = {r.rank for r in in_mesh}
            topology_arrows.add_chosen(figure, chosen.point, chosen.peers, there, page.theme())
        alt = "Ranks in the tensor, pipeline and data parallel mesh, by state"
        page.space(figure, key=rank_clicks.CHART_KEY, alt=alt)
        clicked = rank_clicks.listener()(key="rank_clicks", on_rank_change=lambda: None)
    if clicked["rank"] is not None:
        page.open_page("topology", job=job, rank=clicked["rank"])


def _table(ranks: list[model.RankPoint], columns: tuple[str, ...]) -> None:
    if not ranks:
        page.empty("No rank, node, address or switch matches.")
        return
    urgent = sorted(ranks, key=lambda r: (-look(r.state, RANK_STATES).urgency, r.rank))
    cells = [_cells(rank) for rank in urgent]
    page.table(
        list(columns),
        [[row[name] for name in columns] for row in cells],
        right=tuple(i for i, name in enumerate(columns) if name in _NUMBERS),
    )


def _cells(r: model.RankPoint) -> dict[str, str]:
    return {
        "rank": f'<a href="{escape(topology_panel.address(page.chosen_job(), r.rank))}">{r.rank}</a>',
        "state": pill(r.state, RANK_STATES),
        "node": f'<span class="nw">{escape(r.node)}</span>',
        "address": escape(r.ip),
        "switch": escape(r.switch) or "-",
        **{name: str(getattr(r, name)) for name in ("local_rank", "tp", "pp", "dp", "cp", "ep")},
        "doing": f'<span class="nw">{escape(r.doing)}</span>',
        "last step": str(r.last_step) if r.last_step >= 0 else "-",
        "last heartbeat": escape(r.last_heartbeat),
    }
