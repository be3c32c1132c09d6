"""Who comes last to the collectives of a job, and by how much: a second witness that needs no phases.

A collective ends for all members together, so the member that enqueues it last is the one that the others
wait for. At the last collective of a step a rank's lateness is what its own work took longer since ranks last
left one together. The sources are C4D, Aegis and Holmes (docs/slow-ranks.md).

Times of different nodes are compared on aligned clocks (`clocks`). A lateness within their error is none. On
an oversubscribed host it is chance who comes last, and this witness is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.clocks import align, on_one_clock
from pulsetrain.records.arrow import sorted_codes
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WINDOW = 30  # newest steps
STEPS_NEEDED = 10
OPERATIONS = 300_000  # that one look may read: fewer steps of a larger job, none above 30,000 a step


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
    (node, _), (group, _) = sorted_codes(table["node"]), sorted_codes(table["group"])
    step, seq, rank, start, end = (
        table[name].to_numpy().astype(np.int64) for name in ("step", "seq", "rank", "start_ns", "end_ns")
    )
    origin = int(start.min())  # keeps nanoseconds exact in floating point
    collective = _collectives(step, group, seq)
    clocks = align(collective, node, (end - origin).astype(np.float64))
    aligned, error = on_one_clock((start - origin).astype(np.float64), node, clocks)
    steps, row = np.unique(step, return_inverse=True)
    ranks, column = np.unique(rank, return_inverse=True)
    lateness, lead = (np.full((len(steps), len(ranks)), np.nan) for _ in range(2))
    for rows in _by_size(collective, _comparable(collective, group, column, aligned)):
        times, at = aligned[rows], (row[rows], column[rows])
        np.fmax.at(lateness, at, times - robust.medians_of_others(times))
        np.fmax.at(lead, at, times - robust.highest_of_others(times))
    errors = np.zeros(len(ranks))
    np.maximum.at(errors, column, np.nan_to_num(error))
    return Arrivals(steps=steps, ranks=ranks, lateness_ns=lateness, lead_ns=lead, error_ns=errors)


def _collectives(step: Ints, group: Ints, seq: Ints) -> Ints:
    """The number of each row's collective, in the order of step, group and sequence number."""
    order = np.lexsort((seq, group, step))
    keys = np.stack([step, group, seq])[:, order]
    number = np.empty(len(step), np.int64)
    number[order] = np.append(0, np.cumsum((np.diff(keys) != 0).any(axis=0)))
    return number


def _comparable(collective: Ints, group: Ints, rank: Ints, aligned: Floats) -> NDArray[np.bool_]:
    """For each collective whether all members of its group are there once, three or more, on one clock."""
    members = np.bincount(collective)
    ranks = int(rank.max()) + 1
    different = np.bincount(np.unique(collective * ranks + rank) // ranks)
    group_of = np.empty(len(members), np.int64)
    group_of[collective] = group
    largest = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(largest, group_of, different)
    unknown = np.bincount(collective, ~np.isfinite(aligned)) > 0
    whole = (members >= np.maximum(3, largest[group_of])) & (different == members)
    return np.asarray(whole & ~unknown)


def _by_size(collective: Ints, wanted: NDArray[np.bool_]) -> Iterator[Ints]:
    """The rows of the wanted collectives, those of equal size as one matrix [collective, member]."""
    order, members = np.argsort(collective, kind="stable"), np.bincount(collective)
    first = np.cumsum(members) - members
    for size in np.unique(members[wanted]).tolist():
        yield order[first[wanted & (members == size), None] + np.arange(size)]
