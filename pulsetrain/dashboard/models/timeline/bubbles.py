"""Pipeline bubbles: when a rank stood still between the work of its stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pulsetrain.dashboard.models.timeline.spans import Bools, Ints, Spans

_STAGE_WORK = ("forward", "backward")
_NOT_RUNNING = ("cpu_wait", "off_cpu", "device_wait")
LEAST_RATIO = 0.0005
"""A shorter gap, as a part of the step's stage work, is the script's own code between two phases."""

Interval = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """`start_ns`..`end_ns` in which a rank of a pipeline had no work of its stage."""

    attempt: int
    step: int
    rank: int
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def bubbles_of(spans: Spans) -> tuple[Bubble, ...]:
    """The bubbles by attempt, step, rank and start.

    A bubble lies between the first span of a step and the end of the rank's last forward or backward in it,
    outside of all forwards, backwards and other work of the rank. Waiting to send or receive is no work, nor
    is an operation that goes on beside. Only ranks that send or receive have bubbles. Forwards and backwards
    of microbatches count where there are any, because a forward around them holds the waits too. So do those
    of the device, because the host only launched them. In a step with open stage work, the bubbles end where
    that began. What a rank waits after its last backward is a wait for the other replicas and no bubble.
    """
    kind = _Kinds(spans)
    return tuple(
        bubble for rows in _ranks_steps(spans, kind.in_pipeline) for bubble in _in_step(spans, kind, rows)
    )


class _Kinds:
    """What each span is: stage work, other work, or part of a pipeline."""

    def __init__(self, spans: Spans) -> None:
        phase = spans.names["phase"]
        pass_ = phase.of(*_STAGE_WORK)
        stage = _preferred(spans, pass_, spans["microbatch"] >= 0)
        self.stage: Bools = _preferred(spans, stage, spans.on_device)
        other = ~pass_ & ~spans.communicates & ~phase.of(*_NOT_RUNNING)
        self.busy: Bools = self.stage | other
        transfers = phase.of("send", "recv") | (spans["peer"] >= 0)
        self.in_pipeline: Bools = np.isin(spans["rank"], spans["rank"][transfers])


def _preferred(spans: Spans, chosen: Bools, better: Bools) -> Bools:
    """The chosen spans. Of a rank that has better ones among them, only those."""
    best = chosen & better
    return np.where(np.isin(spans["rank"], spans["rank"][best]), best, chosen)


def _ranks_steps(spans: Spans, chosen: Bools) -> Iterator[Ints]:
    """The rows of each attempt, step and rank."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return
    keys = np.stack([spans["attempt"][rows], spans["step"][rows], spans["rank"][rows]])
    order = np.lexsort(keys[::-1])
    changes = np.flatnonzero(np.any(np.diff(keys[:, order], axis=1) != 0, axis=0)) + 1
    yield from np.split(rows[order], changes)


def _in_step(spans: Spans, kind: _Kinds, rows: Ints) -> Iterator[Bubble]:
    start, end, is_open = spans["start_ns"][rows], spans.end_ns[rows], spans.open[rows]
    stage, busy = kind.stage[rows], kind.busy[rows]
    if not stage.any():
        return
    last = int(np.where(is_open, start, end)[stage].max())
    first = int(start.min())
    least_ns = LEAST_RATIO * (last - first)
    at = rows[0]
    for begins, ends in gaps(zip(start[busy].tolist(), end[busy].tolist(), strict=True), first, last):
        if ends - begins > least_ns:
            yield Bubble(
                attempt=int(spans["attempt"][at]),
                step=int(spans["step"][at]),
                rank=int(spans["rank"][at]),
                start_ns=begins,
                end_ns=ends,
            )


def gaps(busy: Iterable[Interval], first: int, last: int) -> list[Interval]:
    """What intervals leave of `first`..`last`, in order.

    >>> gaps([(2, 4), (3, 5), (8, 9)], 0, 10)
    [(0, 2), (5, 8), (9, 10)]
    """
    found: list[Interval] = []
    free_from = first
    for begins, ends in sorted(busy):
        if begins > free_from:
            found.append((free_from, min(begins, last)))
        free_from = max(free_from, ends)
        if free_from >= last:
            return found
    return [*found, (free_from, last)] if free_from < last else found


def total_ns(bubbles: Sequence[Bubble], rank: int) -> int:
    """How long a rank stood still in all its bubbles."""
    return sum(bubble.length_ns for bubble in bubbles if bubble.rank == rank)
