"""Timeline of chosen ranks and steps on a canvas, and its download for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

import pyarrow as pa
import streamlit as st

from pulsetrain.analytics.selection import parse_ranks
from pulsetrain.analytics.trace_export import export
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts, profile
from pulsetrain.dashboard.canvas import canvas
from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.states import RANK_STATES, pill
from pulsetrain.dashboard.models.steps import Window
from pulsetrain.dashboard.models.text import duration, fold
from pulsetrain.dashboard.models.timeline import words
from pulsetrain.dashboard.models.timeline.drawing import Drawing
from pulsetrain.dashboard.models.timeline.node_clocks import node_clocks
from pulsetrain.dashboard.models.timeline.payload import fitting
from pulsetrain.dashboard.models.timeline.spans import AGE_NS, spans_of
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.dashboard.source import begin
from pulsetrain.stream.queries import timeline as queries
from pulsetrain.stream.queries import views

_LAST = 2
_LAST_MAX = 4
_RANKS = 64
_MOST_SPANS = 12_000
_CLOCK_STEPS = 32
_KEY = "timeline_canvas"
_SHOWN, _HELD, _RENEW = "timeline_shown", "timeline_steps_held", "timeline_renew"


def show() -> None:
    """The page."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ranks = st.text_input("Ranks", key="ranks", bind="query-params", width=220, placeholder="0-3, 7")
        steps = st.text_input(
            "Steps", key="steps", bind="query-params", width=150, placeholder=f"last {_LAST}"
        )
        download = st.container(width="content")
    job, time = page.chosen_job(), page.chosen_time()
    try:
        wanted = parse_ranks(ranks or "") or _first_ranks(page.source().rows(views.jobs), job)
        chosen = _window(job, steps or "", time)
    except UsageError as error:
        st.warning(str(error))
        return
    except PulsetrainError as error:
        page.empty(f"{error}.")
        return
    if chosen is not None:
        with download:
            _download(job, wanted, chosen)
    page.live(partial(_body, job, wanted, steps or "", time))
    profile.show(job, wanted)


def _window(job: str, steps: str, time: TimeChoice) -> Window | None:
    """The steps to draw: those typed, else the last ones that began in the chosen time, else the newest."""
    chosen = parts.window(page.source(), job, time, steps=steps, last=_LAST)
    if chosen is None or steps or not time.given:
        return chosen
    last = chosen.newest if chosen.newest >= 0 else chosen.last
    return Window(first=max(chosen.first, last - _LAST_MAX + 1), last=last)


def _first_ranks(jobs: Sequence[JsonObject], job: str) -> tuple[int, ...]:
    """The first 64 ranks of a job, and those that a finding names or whose machine it names."""
    count = next((int(row["ranks"]) for row in jobs if row["job"] == job), 0)
    blame = attribute(page.findings(job))
    nodes = page.source().job(job).get("nodes", [])
    ranks_of = {str(node["node"]): node.get("ranks") or () for node in nodes}
    theirs = [rank for name in sorted({*blame.nodes, *blame.parts}) for rank in ranks_of.get(name, ())]
    named = list(dict.fromkeys([*sorted(blame.ranks), *theirs]))[:_RANKS]
    first = range(min(count, _RANKS) or 1)
    return tuple(sorted({*named, *first[: _RANKS - len(set(named) - set(first))]}))


def _download(job: str, ranks: tuple[int, ...], chosen: Window) -> None:
    name = f"{job}-{chosen.first}-{chosen.last}.perfetto.json"
    st.download_button(
        "Download for ui.perfetto.dev",
        data=lambda: export(page.source().store(), job, first=chosen.first, last=chosen.last, ranks=ranks),
        file_name=name,
        mime="application/json",
        on_click="ignore",
        help="The same file as `pulsetrain trace export`.",
    )


def _body(job: str, ranks: tuple[int, ...], steps: str, time: TimeChoice) -> None:
    if st.session_state.pop(_RENEW, False):
        st.rerun()  # a callback has changed what stands in the field Steps
    chosen = _window(job, steps, time)
    if chosen is None and time.given:
        page.empty(parts.no_steps(time), "Choose another time, or give steps.")
        return
    first, last = (chosen.first, chosen.last) if chosen else (0, _LAST_MAX)
    # A step in progress is not in `steps` yet: its open spans are one step further on.
    last += 0 if steps or time.given else 1
    asked = {"ranks": ranks, "first": first, "last": last}
    ask_ends = partial(
        page.source().table, queries.collective_ends, job, **{**asked, "first": max(0, last - _CLOCK_STEPS)}
    )
    begin([ask_ends])
    spans = page.source().table(views.spans, job, limit=_MOST_SPANS, **asked)
    if not spans.num_rows:
        page.empty(
            f"No data: no span of ranks {fold(ranks)} in steps {first} to {last}.",
            "Choose other ranks or steps.",
        )
        return
    shown = _shown(job, spans, ask_ends())
    of_time = " They are the last ones that began in the chosen time." if time.given and not steps else ""
    st.html(f"<div class='muted'>{escape(_sentence(shown.drawing, ranks, first, last))}{of_time}</div>")
    _canvas(shown.data, job, Window(first=first, last=last))
    with st.expander("The same in words and as a table"):
        st.html(f"<div id='timeline-words'>{escape(shown.drawing.summary)}</div>")
        _table(job, shown.drawing)


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What was drawn last in this tab, and from what."""

    spans: pa.Table
    ends: pa.Table
    others: tuple[object, ...]
    drawing: Drawing
    data: bytes


def _shown(job: str, spans: pa.Table, ends: pa.Table) -> _Shown:
    """The drawing, made anew only where something has changed."""
    live = page.source().job(job)
    attempt = int(live.get("attempt", -1)) if live.get("state") == "running" else -1
    blame, theme, now_ns = attribute(page.findings(job)), page.theme(), page.now_ns()
    others = (job, attempt, blame, theme, now_ns // AGE_NS if attempt >= 0 else 0)
    before: _Shown | None = st.session_state.get(_SHOWN)
    if before and before.others == others and before.spans.equals(spans) and before.ends.equals(ends):
        return before
    columns = spans_of(spans).with_ages(live_attempt=attempt, now_ns=now_ns)
    drawing, data = fitting(columns, node_clocks(ends), blame, theme)
    shown = _Shown(spans=spans, ends=ends, others=others, drawing=drawing, data=data)
    st.session_state[_SHOWN] = shown
    return shown


def _sentence(drawing: Drawing, ranks: tuple[int, ...], first: int, last: int) -> str:
    left_out = drawing.left_out
    more = f" The {left_out:,} shortest spans are left out. The download holds them." if left_out else ""
    return f"Ranks {fold(ranks)}, steps {first} to {last}.{more} {words.clock_words(drawing)}"


def _canvas(data: bytes, job: str, chosen: Window) -> None:
    result = canvas()(
        key=_KEY,
        data=data,
        on_view_change=partial(_keep_view, chosen),
        on_rank_change=_keep_rank,
        on_open_change=lambda: None,
    )
    if result["open"] is not None:
        page.open_page("rank", job=job, rank=int(result["open"]))


def _keep_view(chosen: Window) -> None:
    """Put the part that the canvas shows into the address, and hold the steps while it is not the whole.

    A running job would take the steps away that a person looks at.
    """
    view = str(st.session_state[_KEY].get("view") or "")
    _into_address("view", view)
    steps = st.session_state.get("steps") or ""
    if view and not steps:
        st.session_state["steps"] = st.session_state[_HELD] = f"{chosen.first}:{chosen.last}"
        st.session_state[_RENEW] = True
    elif not view and steps and steps == st.session_state.pop(_HELD, ""):
        st.session_state["steps"], st.session_state[_RENEW] = "", True


def _keep_rank() -> None:
    _into_address("rank", str(st.session_state[_KEY].get("rank") or ""))


def _into_address(name: str, value: str) -> None:
    if value:
        st.query_params[name] = value
    else:
        st.query_params.pop(name, None)


def _table(job: str, drawing: Drawing) -> None:
    page.table(
        ["rank", "node", "state", "spans", "own work", "stood still", "bubbles", "longest", "not ended"],
        [
            [
                parts.rank_link(job, line.rank),
                parts.node_link(job, line.node),
                pill(line.state, RANK_STATES) if line.state else "-",
                f"{line.spans:,}",
                duration(line.own_ns) if line.own_ns >= 0 else "-",
                duration(line.blocked_ns) if line.blocked_ns >= 0 else "-",
                duration(line.bubble_ns) if line.bubble_ns else "-",
                escape(line.longest) or "-",
                escape(line.open) or "-",
            ]
            for line in words.rank_lines(drawing)
        ],
        right=(0, 3, 4, 5, 6),
    )
