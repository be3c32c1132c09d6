"""A timeline in words and as a table, for those who do not see the canvas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pulsetrain.dashboard.models.text import duration
from pulsetrain.dashboard.models.timeline.bubbles import total_ns
from pulsetrain.dashboard.models.timeline.drawing import Drawing
from pulsetrain.dashboard.models.timeline.spans import Bools, Spans

_OPEN_NAMED = 3


def summary(drawing: Drawing) -> str:
    """What the timeline shows, in a few sentences."""
    ranks = len({lane.rank for lane in drawing.lanes.lanes})
    first, last = (pick(step.step for step in drawing.steps) for pick in (min, max))
    shown = f"{_count(ranks, 'rank')}, steps {first} to {last}, {_count(len(drawing.spans), 'span')}."
    return " ".join(part for part in (shown, _open(drawing), _bubbles(drawing), clock_words(drawing)) if part)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _open(drawing: Drawing) -> str:
    """Which operations are open, those of blamed ranks and then the oldest first."""
    spans = drawing.spans
    rows = [
        row
        for row in np.flatnonzero(spans.open).tolist()
        if spans["attempt"][row] == max(step.attempt for step in drawing.steps)
    ]
    if not rows:
        return ""
    blamed = ("culprit", "slow", "part")
    rows.sort(
        key=lambda row: (
            drawing.states.get(int(spans["rank"][row])) not in blamed,
            -int(spans["duration_ns"][row]),
            row,
        )
    )
    named = "; ".join(
        f"rank {spans['rank'][row]} is in {spans.names['phase'].at(row)} "
        f"for at least {duration(int(spans['duration_ns'][row]))}"
        for row in rows[:_OPEN_NAMED]
    )
    more = len(rows) - _OPEN_NAMED
    return f"Not ended: {named}" + (f"; and {more} more." if more > 0 else ".")


def _bubbles(drawing: Drawing) -> str:
    if not drawing.bubbles:
        return ""
    ranks = {bubble.rank for bubble in drawing.bubbles}
    worst = max(sorted(ranks), key=lambda rank: total_ns(drawing.bubbles, rank))
    whole = sum(bubble.length_ns for bubble in drawing.bubbles)
    return (
        f"Pipeline bubbles take {duration(whole / len(ranks))} of a rank on average, "
        f"most of rank {worst} with {duration(total_ns(drawing.bubbles, worst))}."
    )


def clock_words(drawing: Drawing) -> str:
    """How well the clocks of the nodes are put side by side. "" for one node."""
    nodes = drawing.spans.names["node"].names
    if len(nodes) < 2:
        return ""
    errors = drawing.clock_errors_ns
    apart = [node for node in nodes if node not in errors]
    if not errors:
        return "Times are each node's own clock: too few shared collectives to put them side by side."
    words = f"Clocks of {len(errors)} nodes are put side by side, to ± {duration(max(errors.values()))}."
    if apart:
        words += f" Not that of {', '.join(apart[:3])}" + (" and others." if len(apart) > 3 else ".")
    return words


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """One rank of the table. `own_ns` and `blocked_ns` are of its outermost spans that ended, -1 unknown."""

    rank: int
    node: str
    state: str
    spans: int
    own_ns: int
    blocked_ns: int
    bubble_ns: int
    longest: str
    open: str
    clock_error_ns: int | None


def rank_lines(drawing: Drawing) -> list[RankLine]:
    """The table, by rank."""
    ranks = sorted({lane.rank for lane in drawing.lanes.lanes})
    return [_rank_line(drawing, rank) for rank in ranks]


def _rank_line(drawing: Drawing, rank: int) -> RankLine:
    spans = drawing.spans
    mine = spans["rank"] == rank
    node = drawing.lanes.lanes[drawing.lanes.of_rank(rank)[0]].node
    own, blocked = _own_and_blocked(spans, mine)
    return RankLine(
        rank=rank,
        node=node,
        state=drawing.states.get(rank, ""),
        spans=int(mine.sum()),
        own_ns=own,
        blocked_ns=blocked,
        bubble_ns=total_ns(drawing.bubbles, rank),
        longest=_longest(spans, mine & ~spans.open),
        open=_longest(spans, mine & spans.open),
        clock_error_ns=drawing.clock_errors_ns.get(node),
    )


def _own_and_blocked(spans: Spans, mine: Bools) -> tuple[int, int]:
    outermost = mine & ~spans.open & spans.names["parent"].of("") & (spans.on_host | spans.on_device)
    if (spans["blocked_ns"][outermost] < 0).any():
        return -1, -1
    blocked = int(spans["blocked_ns"][outermost].sum())
    work = outermost & ~spans.communicates
    return int((spans["duration_ns"] - spans["blocked_ns"])[work].sum()), blocked


def _longest(spans: Spans, chosen: Bools) -> str:
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return ""
    row = int(rows[np.argmax(spans["duration_ns"][rows])])
    took = duration(int(spans["duration_ns"][row]))
    return f"{spans.names['phase'].at(row)} {took}, step {spans['step'][row]}"
