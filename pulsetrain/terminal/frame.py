"""One screen of `pulsetrain top` as lines of text. Pure.

A line is never wider than the screen and there are never more lines than the screen has. What needs a person
comes first in every part, so what does not fit matters least. A part that leaves something out says how much.
"""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from rich.text import Text

from pulsetrain.dashboard.models.states import JOB_STATES, NODE_STATES, SEVERITIES, look
from pulsetrain.dashboard.models.text import ago, clock, duration, fold
from pulsetrain.terminal.colours import colour
from pulsetrain.terminal.view import AlertView, JobView, NodeView, SlowView, View

LEAST_WIDTH = 24
_LATE_S = 2.0  # an answer that is older has its age beside it
_TWO_COLUMNS = 76
_THREE_COLUMNS = 132
_GAP = 2
_JOBS_LISTED = 6
_WITHOUT_LIMIT = 40  # lines of tables and alerts where the screen has no end

Lines = list[Text]
Row = TypeVar("Row")


def frame(view: View, *, width: int, height: int | None, chosen: str = "", keys: bool = False) -> Lines:
    """The screen. `chosen` is the job that is shown in full, by default the one that needs a person most.

    `height` is None where the screen has no end. `keys` adds a last line that says which keys there are.
    """
    width = max(width, LEAST_WIDTH)
    job = view.job(chosen) or next(iter(view.jobs), None)
    top = [_header(view, width), *_problem(view, width)]
    foot = [_keys(view, width)] if keys else []
    if job is None:
        top += _wrapped("No job has joined this hub. Start one: pulsetrain run script.py", width, most=3)
    else:
        top += [*_jobs(view, job, width), *_verdict(job, view, width)]
    room = None if height is None else max(0, height - len(top) - len(foot))
    body = _body(job, view, width, _WITHOUT_LIMIT if room is None else room)
    if height is None:
        return [*top, *body, *foot]
    filled = [*top, *body][: max(0, height - len(foot))]
    filled += [Text()] * (height - len(foot) - len(filled))
    return [*filled, *foot][:height]


def _line(width: int, *parts: tuple[str, str] | str) -> Text:
    """One line, cut where the screen ends."""
    line = Text.assemble(*parts, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _wrapped(text: str, width: int, *, most: int, style: str = "") -> Lines:
    """A sentence on at most `most` lines."""
    lines = textwrap.wrap(text, width, max_lines=most, placeholder=" …", break_on_hyphens=False)
    return [_line(width, (line, style)) for line in lines]


def _header(view: View, width: int) -> Text:
    late = view.age_s > _LATE_S
    state = f"{clock(view.now_ns)[11:]} UTC" if not late else f"answer of {view.age_s:.0f} s ago"
    state = f"STALE: {view.age_s:.0f} s old" if view.stale else state
    mode = "  observe only" if view.observe_only else ""
    left = f"pulsetrain top  {view.hub}{mode}"
    room = max(0, width - len(state) - _GAP)
    return _line(
        width,
        (f"{left[:room]:{room}}" + " " * _GAP, "bold"),
        (state, "bold reverse red" if view.stale else "yellow" if late else "green"),
    )


def _problem(view: View, width: int) -> Lines:
    if not view.stale:
        return []
    problem = view.problem or f"The hub does not answer, for {view.age_s:.0f} s now"
    return _wrapped(f"{problem}. What follows is what it said last.", width, most=2, style="red")


def _jobs(view: View, chosen: JobView, width: int) -> Lines:
    """One line for each job where there are several."""
    if len(view.jobs) < 2:
        return []
    at = next(i for i, job in enumerate(view.jobs) if job.job == chosen.job)
    first = max(0, min(at - _JOBS_LISTED // 2, len(view.jobs) - _JOBS_LISTED))
    shown = view.jobs[first : first + _JOBS_LISTED]
    name = min(24, max(len(job.job) for job in shown))
    lines = []
    for job in shown:
        state = look(job.state, JOB_STATES)
        marker = "> " if job.job == chosen.job else "  "
        lines.append(
            _line(
                width,
                (marker, "bold"),
                (f"{state.glyph} {state.label:10} ", colour(state)),
                (f"{job.job[:name]:{name}}  ", "bold" if job.job == chosen.job else ""),
                (f"{_lasts(job, view):>11}  ", "dim"),
                (job.sentence, "" if job.runs_here else "dim"),
            )
        )
    left = len(view.jobs) - len(shown)
    return [*lines, *([_line(width, (f"  and {left:,} more jobs", "dim"))] if left else []), Text()]


def _lasts(job: JobView, view: View) -> str:
    """For how long the verdict has been what it is. "" where nobody knows."""
    known = job.since_ns and not job.last_said
    return whole_seconds(max(0, view.now_ns - job.since_ns) / 1e9) if known else ""


def _verdict(job: JobView, view: View, width: int) -> Lines:
    """How the job is, since when, what to do, and what is going to be done."""
    state = look(job.state, JOB_STATES)
    since = f"since {clock(job.since_ns)} UTC, {ago(job.since_ns, view.now_ns)}" if job.since_ns else ""
    if job.last_said:
        since = ""
    lines = [
        _line(
            width,
            (f"{state.glyph} {job.job} ", "bold"),
            (f"{state.label} ", f"bold {colour(state)}"),
            (since, "dim"),
        )
    ]
    lines += _wrapped(job.sentence, width, most=3, style="" if job.state == "healthy" else "bold")
    if job.last_said:
        lines += _wrapped(f"It last said: {job.last_said}", width, most=2, style="dim")
    if job.to_do != "Nothing.":
        lines += _wrapped(f"What to do: {job.to_do}", width, most=2, style="cyan")
    lines += _countdown(job, view, width)
    return [*lines, *_wrapped(_facts(job), width, most=2), Text()]


def _countdown(job: JobView, view: View, width: int) -> Lines:
    """When the job is restarted for a hang, and how to say no."""
    if job.pending is None or view.stale:
        return []
    name = shlex.quote(job.job)
    if job.pending.left_s is None:
        return [_line(width, (f"Restart it: pulsetrain pending {name} --now --reason TEXT", "dim"))]
    decide = f"Or leave it alone: pulsetrain pending {name} --wait 30 --reason TEXT"
    return [
        _line(
            width,
            (f"Restart in {whole_seconds(job.pending.left_s)}. ", "bold yellow"),
            f"Rank {job.pending.rank} hangs.",
        ),
        _line(width, (decide, "dim")),
    ]


def whole_seconds(seconds: float) -> str:
    """A time in seconds or longer units, without a fraction.

    >>> whole_seconds(33.4), whole_seconds(200)
    ('33 s', '3 min 20 s')
    """
    return f"{seconds:.0f} s" if seconds < 60 else duration(round(seconds) * 1e9)


def _facts(job: JobView) -> str:
    """What is known of the job's progress, in one sentence."""
    facts = [f"step {job.step:,}"] if job.step >= 0 else []
    facts += [f"{duration(job.step_s * 1e9)} a step"] if job.step_s else []
    facts += [f"MFU {job.mfu:.1%}"] if job.mfu is not None else []
    facts += [f"attempt {job.attempt}"] if job.attempt >= 0 else []
    facts += [f"{job.world_size:,} ranks"] if job.world_size else []
    facts += [f"{job.recoveries:,} recoveries" if job.recoveries != 1 else "1 recovery"] * bool(
        job.recoveries
    )
    facts += [f"ETTR {job.ettr}"] if job.ettr else []
    return " · ".join(facts)


def _body(job: JobView | None, view: View, width: int, room: int) -> Lines:
    """Alerts take a third of the room, or what the tables leave."""
    alerts = [a for a in view.alerts if job is None or a.job in (job.job, "")]
    tables = _tables(job, width, room) if job is not None else []
    wanted = len(alerts) + 1 if alerts else 1
    most = max(min(wanted, room // 3), room - len(tables) - 1)
    of_alerts = _alerts(alerts, view, width, most)
    tables = _tables(job, width, room - len(of_alerts) - 1) if job is not None else []
    return [*tables, *([Text()] if tables else []), *of_alerts]


def _tables(job: JobView, width: int, room: int) -> Lines:
    """The slowest ranks and nodes, and the state of every node, side by side where there is room."""
    if not job.runs_here or room < 2:
        return []
    if width >= _THREE_COLUMNS:
        each = (width - 2 * _GAP) // 3
        return _beside(
            [_slow_ranks(job, each, room), _slow_nodes(job, each, room), _nodes(job, each, room)], each
        )
    if width >= _TWO_COLUMNS:
        each = (width - _GAP) // 2
        ranks = _slow_ranks(job, each, room)
        below = _slow_nodes(job, each, room - len(ranks) - 1)
        slow = [*ranks, Text(), *below] if job.slowest_nodes and len(below) > 1 else ranks
        return _beside([slow, _nodes(job, each, room)], each)
    above = _slow_ranks(job, width, max(2, room // 2))
    return [*above, *_nodes(job, width, room - len(above))][:room]


def _slow_ranks(job: JobView, width: int, room: int) -> Lines:
    title = f"slowest ranks, {job.slowest_steps} steps" if job.slowest_ranks else "slowest ranks"
    return _slow(title, job.slowest_ranks, width, room)


def _slow_nodes(job: JobView, width: int, room: int) -> Lines:
    return _slow("slowest nodes", job.slowest_nodes, width, room)


def _beside(parts: Sequence[Lines], width: int) -> Lines:
    """Parts of one width as columns."""
    lines = []
    for row in zip_longest(*parts, fillvalue=Text()):
        line = Text(no_wrap=True)
        for number, cell in enumerate(row):
            padded = cell.copy()
            padded.truncate(width, overflow="ellipsis", pad=number < len(row) - 1)
            line.append_text(padded)
            if number < len(row) - 1:
                line.append(" " * _GAP)
        lines.append(line)
    return lines


def _slow(title: str, rows: Sequence[SlowView], width: int, room: int) -> Lines:
    if not rows:
        return [_title(title, width), _line(width, ("no compute time known yet", "dim"))][: max(0, room)]
    name = max(len(row.name) for row in rows)
    return [_title(title, width), *(_slow_line(row, name, width) for row in rows)][: max(0, room)]


def _slow_line(row: SlowView, name: int, width: int) -> Text:
    """Who, by how much, how long, where. The numbers come first: a long name of a node is cut."""
    ratio = "" if row.slower_ratio is None else f"{100 * row.slower_ratio:+.1f}%"
    took = "" if row.compute_s is None else duration(row.compute_s * 1e9)
    node = row.node if row.node != row.name else ""
    style = colour(look(row.blamed, NODE_STATES)) if row.blamed else ""
    return _line(width, (f"{row.name:{name}} {ratio:>8} {took:>9}  {node}", style))


def _nodes(job: JobView, width: int, room: int) -> Lines:
    """The nodes with how many there are of each state."""
    counts = Counter(node.state for node in job.nodes)
    order = sorted(counts, key=lambda state: -look(state, NODE_STATES).urgency)
    words = ", ".join(f"{counts[state]:,} {look(state, NODE_STATES).label}" for state in order)
    title = _title(f"nodes: {words}" if words else "nodes", width)
    name = max((min(20, len(node.node)) for node in job.nodes), default=0)
    return [title, *_limited(job.nodes, room - 1, lambda node: _node_line(node, name, width), "nodes", width)]


def _node_line(node: NodeView, name: int, width: int) -> Text:
    state = look(node.state, NODE_STATES)
    label = f"{state.glyph} {node.node[:name]:{name}} "
    ranks = f"ranks {fold(node.ranks)}" if node.ranks else ""
    return _line(
        width,
        (label, colour(state)),
        (f"{state.label:8}", colour(state)),
        f"{node.heard_age_s:5.1f} s  ",
        node.reason or ranks,
    )


def _alerts(alerts: Sequence[AlertView], view: View, width: int, room: int) -> Lines:
    if room < 1:
        return []
    serious = sum(alert.severity != "info" for alert in alerts)
    counts = [f"{serious:,} open"] * bool(serious)
    counts += [f"{len(alerts) - serious:,} of information"] * (serious < len(alerts))
    title = _title(f"alerts: {', '.join(counts) or 'none open'}", width)
    return [
        title,
        *_limited(alerts, room - 1, lambda alert: _alert_line(alert, view, width), "alerts", width),
    ]


def _alert_line(alert: AlertView, view: View, width: int) -> Text:
    state = look(alert.severity, SEVERITIES)
    taken = f"({alert.acknowledged_by}) " if alert.acknowledged_by else "(silenced) " if alert.muted else ""
    return _line(
        width,
        (f"{state.glyph} {alert.kind} ", colour(state)),
        (f"{ago(alert.since_ns, view.now_ns)} {taken}", "dim"),
        alert.summary or alert.about,
    )


def _title(text: str, width: int) -> Text:
    return _line(width, (text, "bold underline"))


def _limited(rows: Sequence[Row], room: int, line: Callable[[Row], Text], what: str, width: int) -> Lines:
    """A line for each row, or for as many as there is room for, and how many are left out."""
    if len(rows) <= room:
        return [line(row) for row in rows]
    shown = [line(row) for row in rows[: max(0, room - 1)]]
    return [*shown, _line(width, (f"and {len(rows) - len(shown):,} more {what}", "dim"))][: max(0, room)]


def _keys(view: View, width: int) -> Text:
    jobs = "  up/down other job" if len(view.jobs) > 1 else ""
    return _line(width, (f"q quit{jobs}", "dim"))


def plain(lines: Iterable[Text]) -> str:
    """The lines without colours."""
    return "\n".join(line.plain.rstrip() for line in lines)
