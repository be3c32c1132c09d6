"""Spans on lanes: the main thread of a rank, its communication, and each stream or other thread."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pulsetrain.dashboard.models.timeline.spans import Ints, Spans

MOST_LEVELS = 3
"""Spans that overlap are drawn on levels. What lies deeper is drawn on the last one."""
_SLACK_NS = 1_000
"""Spans that overlap by less follow each other: putting clocks side by side rounds times."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One lane of a rank: spans `first`..`last` - 1 of the drawing."""

    rank: int
    node: str
    label: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """The lanes in the order of their spans. `level` has that of each span on its lane, 0 at the bottom."""

    lanes: tuple[Lane, ...]
    level: Ints

    def of_rank(self, rank: int) -> list[int]:
        """The numbers of a rank's lanes."""
        return [i for i, lane in enumerate(self.lanes) if lane.rank == rank]


def lanes_of(spans: Spans) -> Lanes:
    """The lanes of spans that are in order.

    Communication of the main thread has a lane of its own, because it may go on beside the thread's work. A
    rank that was launched again on another node keeps its lanes, which name the newest node.
    """
    if not len(spans):
        return Lanes(lanes=(), level=np.zeros(0, np.int64))
    lane, communicates = spans.names["lane"], spans.communicates
    keys = np.stack([spans["rank"], lane.codes, communicates.astype(np.int64)])
    first = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    bounds = [0, *first.tolist(), len(spans)]
    level = np.zeros(len(spans), np.int64)
    lanes = []
    for begin, end in pairwise(bounds):
        level[begin:end] = _levels(spans["start_ns"][begin:end], spans.end_ns[begin:end])
        newest = begin + int(np.argmax(spans["attempt"][begin:end]))
        lanes.append(
            Lane(
                rank=int(spans["rank"][begin]),
                node=spans.names["node"].at(newest),
                label=_label(lane.at(begin), bool(communicates[begin]), bool(spans.on_host[begin])),
                first=begin,
                last=end,
            )
        )
    return Lanes(lanes=tuple(lanes), level=level)


def _label(lane: str, communicates: bool, on_host: bool) -> str:
    if communicates:
        return "communication" if on_host else f"{lane} communication"
    return lane


def _levels(start: Ints, end: Ints) -> Ints:
    """The lowest free level of each span. Spans come in order of start."""
    free_at: list[int] = []
    levels = np.zeros(len(start), np.int64)
    for i, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        place = next((k for k, free in enumerate(free_at) if free - begins < _SLACK_NS), len(free_at))
        if place == len(free_at) and place < MOST_LEVELS:
            free_at.append(ends)
        elif place < len(free_at):
            free_at[place] = ends
        levels[i] = min(place, MOST_LEVELS - 1)
    return levels
