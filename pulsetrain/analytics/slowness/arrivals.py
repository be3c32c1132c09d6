"""Who comes last to the collectives of a job, and by how much: a second witness that needs no phases.

A collective ends for all members together, so the member that enqueues it last is the one that the others
wait for. At the last collective of a step a rank's lateness is what its own work took longer since ranks last
left one together. The sources are C4D, Aegis and Holmes (docs/slow-ranks.md).

Times of different nodes are compared on aligned clocks (`clocks`). A lateness within their error is none. On
an oversubscribed host it is chance who comes last, and this witness is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.clocks import Clock, align
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WINDOW = 30  # newest steps
STEPS_NEEDED = 10
OPERATIONS = 300_000  # that one look may read: fewer steps of a larger job


LoadArrivals = Callable[[], "Arrivals | None"]


def no_arrivals() -> Arrivals | None:
    """For times that come without a store."""
    return None


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """The last collective of each step and group, as matrices [step, rank]. NaN where a rank had none.

    `lateness_ns`: how much later than the median of the other members a rank enqueued it. `lead_ns`: how much
    later than every other member, negative for all but the last. `error_ns`: of the clocks that were
    compared, one entry for each rank.
    """

    steps: Ints
    ranks: Ints
    lateness_ns: Floats
    lead_ns: Floats
    error_ns: Floats

    def of(self, ranks: Sequence[int]) -> Arrival | None:
        """How these ranks arrive. None where fewer than ten steps tell.

        Of several ranks, the one that is latest in a step counts.
        """
        columns = np.flatnonzero(np.isin(self.ranks, list(ranks)))
        if not len(columns):
            return None
        late, lead = self.lateness_ns[:, columns], self.lead_ns[:, columns]
        rows = np.isfinite(late).any(axis=1)
        if rows.sum() < STEPS_NEEDED:
            return None
        error = float(self.error_ns[columns].max())
        latest = np.nanmax(late[rows], axis=1)
        return Arrival(
            ranks=tuple(self.ranks[columns].tolist()),
            lateness_ns=float(robust.trimmed_mean(latest[:, None])[0]),
            last_ratio=float((np.nanmax(lead[rows], axis=1) > error).mean()),
            error_ns=error,
            steps=int(rows.sum()),
        )

    def latest(self) -> Arrival | None:
        """How the rank arrives that is later than all others on average."""
        every = [a for rank in self.ranks.tolist() if (a := self.of([rank])) is not None]
        return max(every, key=lambda a: (a.last_ratio, a.lateness_ns, -a.ranks[0]), default=None)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """How some ranks arrive at the last collectives of steps.

    `last_ratio`: the share of steps in which one of them came last, by more than the clocks' error.
    """

    ranks: tuple[int, ...]
    lateness_ns: float
    last_ratio: float
    error_ns: float
    steps: int


def load(store: Queryable, steps: AttemptSteps) -> Arrivals | None:
    """The arrivals of the newest of these steps. None where there are too few, or too many operations."""
    (row,) = analysis.communication_count(store, steps).to_pylist()
    window = min(WINDOW, OPERATIONS // max(1, int(row["operations"] or 0)))
    if window < STEPS_NEEDED:
        return None
    newest = AttemptSteps(
        job=steps.job, attempt=steps.attempt, first=max(steps.first, steps.last - window + 1), last=steps.last
    )
    return arrivals_from(analysis.last_collectives(store, newest))


def arrivals_from(table: pa.Table) -> Arrivals | None:
    """The matrices from a table of `analysis.last_collectives`, rows in any order. None: nothing to compare.

    Collectives of fewer than three members are left out, and those that lack a member.
    """
    if not table.num_rows:
        return None
    rows = table.to_pydict()
    names = sorted(set(rows["node"]))
    node = np.array([names.index(name) for name in rows["node"]], np.int64)
    start, end = (np.array(rows[name], np.int64) for name in ("start_ns", "end_ns"))
    step, rank = (np.array(rows[name], np.int64) for name in ("step", "rank"))
    origin = int(start.min())  # keeps nanoseconds exact in floating point
    keys = list(zip(rows["step"], rows["group"], rows["seq"], strict=True))
    known = {key: i for i, key in enumerate(sorted(set(keys)))}
    collective = np.array([known[key] for key in keys], np.int64)
    clocks = align(collective, node, (end - origin).astype(np.float64))
    aligned, error = _on_one_clock((start - origin).astype(np.float64), node, clocks)
    members: dict[str, int] = {}
    for group, count in zip(*_sizes(rows["group"], collective, rank), strict=True):
        members[group] = max(count, members.get(group, 0))
    steps, ranks = np.unique(step), np.unique(rank)
    lateness, lead = (np.full((len(steps), len(ranks)), np.nan) for _ in range(2))
    for which in _segments(collective):
        if len(which) < max(3, members[rows["group"][which[0]]]) or not np.isfinite(aligned[which]).all():
            continue
        if len(np.unique(rank[which])) < len(which):
            continue
        at = np.searchsorted(steps, step[which[0]]), np.searchsorted(ranks, rank[which])
        late, ahead = _compare(aligned[which])
        lateness[at] = np.fmax(lateness[at], late)
        lead[at] = np.fmax(lead[at], ahead)
    errors = np.zeros(len(ranks))
    np.maximum.at(errors, np.searchsorted(ranks, rank), np.nan_to_num(error))
    return Arrivals(steps=steps, ranks=ranks, lateness_ns=lateness, lead_ns=lead, error_ns=errors)


def _on_one_clock(start: Floats, node: Ints, clocks: dict[int, Clock]) -> tuple[Floats, Floats]:
    """Times on the reference's clock and their error. NaN on a node that cannot be compared."""
    aligned, error = np.full(len(start), np.nan), np.full(len(start), np.nan)
    for number, clock in clocks.items():
        mine = node == number
        aligned[mine] = start[mine] - clock.offset(start[mine])
        error[mine] = clock.error_ns
    return aligned, error


def _sizes(groups: Sequence[str], collective: Ints, rank: Ints) -> tuple[list[str], list[int]]:
    """The group of each collective, and how many ranks took part."""
    _, once = np.unique(np.stack([collective, rank]), axis=1, return_index=True)
    _, first, counts = np.unique(collective[once], return_index=True, return_counts=True)
    return [groups[i] for i in once[first].tolist()], counts.tolist()


def _segments(collective: Ints) -> list[Ints]:
    """The rows of each collective."""
    order = np.argsort(collective, kind="stable")
    _, first = np.unique(collective[order], return_index=True)
    return np.split(order, first[1:])


def _compare(times: Floats) -> tuple[Floats, Floats]:
    """Each member's time after the median of the others, and after the latest of the others."""
    late, lead = np.empty(len(times)), np.empty(len(times))
    for i in range(len(times)):
        others = np.delete(times, i)
        late[i], lead[i] = times[i] - np.median(others), times[i] - others.max()
    return late, lead
