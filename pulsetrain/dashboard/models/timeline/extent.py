"""Which steps are shown, and from when to when time is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pulsetrain.dashboard.models.timeline.spans import Spans

_HUNG_TIMES = 2.0
"""an open span that is older than so many of the shown steps is drawn beside them, not to their scale"""
_ROOM_RATIO = 0.25
"""the part of the view behind the last known end, where open spans go on"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """From the first start to the last known end of a step, over all shown ranks. Of open spans, the start
    counts."""

    attempt: int
    step: int
    start_ns: int
    end_ns: int
    closed: bool
    """whether any of its spans has ended"""


def steps_of(spans: Spans) -> tuple[Step, ...]:
    """The steps in order of attempt and step."""
    if not len(spans):
        return ()
    known_ns = np.where(spans.open, spans["start_ns"], spans.end_ns)
    keys = np.stack([spans["attempt"], spans["step"]])
    names, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    return tuple(
        Step(
            attempt=int(attempt),
            step=int(step),
            start_ns=int(spans["start_ns"][which == i].min()),
            end_ns=int(known_ns[which == i].max()),
            closed=bool((~spans.open[which == i]).any()),
        )
        for i, (attempt, step) in enumerate(names.T.tolist())
    )


@dataclass(frozen=True, kw_only=True)
class Extent:
    """From where to where time is drawn, UTC ns. `view` is what a timeline begins with. `hung`: something has
    been open for so long that the view shows only the last step that has ended work."""

    full: tuple[int, int]
    view: tuple[int, int]
    hung: bool


def extent_of(spans: Spans, steps: Sequence[Step]) -> Extent:
    """The time that is drawn. An open span never stretches it: it goes on to the edge, however old it is.

    The view is that of the newest attempt, and in a hang that of its last step.
    """
    newest = [step for step in steps if step.attempt == max(s.attempt for s in steps)]
    first, last = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
    waits = spans.open & (spans["attempt"] == newest[0].attempt)
    oldest = int(spans["duration_ns"][waits].max(initial=0))
    longest = max((step.end_ns - step.start_ns for step in newest if step.closed), default=0)
    hung = oldest > _HUNG_TIMES * longest
    real = [step for step in newest if step.closed][-1:] if hung else newest
    begins = min(step.start_ns for step in real or newest)
    is_open = bool(spans.open.any())
    return Extent(
        full=(first, _with_room(first, last, is_open)),
        view=(begins, _with_room(begins, max(step.end_ns for step in newest), is_open)),
        hung=hung,
    )


def _with_room(first: int, last: int, is_open: bool) -> int:
    width = max(1_000, last - first)
    return first + int(width * (1 + _ROOM_RATIO if is_open else 1.01))
