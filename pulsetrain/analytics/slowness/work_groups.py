"""Which ranks may have other work than the rest, by the process groups in which they communicate. Pure.

Actors and critics of reinforcement learning, encoders and decoders, or two trainings in one launch have
groups of their own. Ranks of one role do the same kinds of collectives about as often. Groups of all ranks
tell nothing. Transfers between two ranks do not count either: pipelines are read from those
(`pipeline_order`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.protocol.own_world import is_own_name
from pulsetrain.records.arrow import sorted_codes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

AS_OFTEN = (
    1.5  # numbers of collectives of one role, in order, differ by less than this ratio from one to the next
)
AS_MUCH = 4.0  # so do bytes. How many there are may depend on the data
BY_ONE = ("all_to_all", "broadcast", "scatter", "gather", "reduce")
"""Collectives whose bytes differ between ranks that do the same work."""
ALONE = -1
APART = -2


@dataclass(frozen=True, kw_only=True)
class WorkGroups:
    """Of each rank the number of its role, and of its circle: ranks that share groups, also through others.

    A rank that is in no group but those of all ranks is `ALONE`. One in a world that is not the job's is
    `APART`: with whom it works is not known.
    """

    roles: dict[int, int] = field(default_factory=dict)
    circles: dict[int, int] = field(default_factory=dict)

    def roles_of(self, ranks: Ints) -> Ints:
        """The role of each of these ranks. `ALONE` where none is known."""
        return np.array([self.roles.get(rank, ALONE) for rank in ranks.tolist()], np.int64)

    def circles_of(self, ranks: Ints) -> Ints:
        """The circle of each of these ranks."""
        return np.array([self.circles.get(rank, ALONE) for rank in ranks.tolist()], np.int64)


def work_groups(table: pa.Table) -> WorkGroups:
    """The roles and circles from a table of `analysis.group_work`, rows in any order.

    >>> rows = [(0, "world"), (1, "world"), (2, "world"), (3, "world"), (0, "actor"), (1, "actor")]
    >>> ranks, groups = zip(*rows)
    >>> columns = {"rank": ranks, "group": groups, "phase": ["all_reduce"] * 6}
    >>> found = work_groups(pa.table(columns | {"operations": [1] * 6, "bytes": [8] * 6}))
    >>> found.roles, found.circles
    ({0: 1, 1: 1, 2: 0, 3: 0}, {0: 0, 1: 0, 2: -1, 3: -1})
    """
    if not table.num_rows:
        return WorkGroups()
    rank, often, much = (
        table[name].to_numpy().astype(np.float64) for name in ("rank", "operations", "bytes")
    )
    (group, names), (phase, phases) = (sorted_codes(table[name]) for name in ("group", "phase"))
    ranks, column = np.unique(rank.astype(np.int64), return_inverse=True)
    pairs = np.unique(group * len(ranks) + column)
    sizes = np.bincount(pairs // len(ranks), minlength=int(group.max()) + 1)
    some = ((sizes > 1) & (sizes < len(ranks)))[group]
    shape, cells = (len(ranks), len(phases)), column * len(phases) + phase
    counts, payload = (
        np.bincount(cells[some], values[some], shape[0] * shape[1]).reshape(shape).astype(np.float64)
        for values in (often, much)
    )
    payload[:, [name in BY_ONE for name in phases]] = 0.0
    classes = [_alike(column_of, AS_OFTEN) for column_of in counts.T]
    classes += [_alike(column_of, AS_MUCH) for column_of in payload.T]
    _, role = np.unique(np.stack(classes, axis=1), axis=0, return_inverse=True)
    circle = _circles(group[some], column[some], len(ranks))
    circle[column[np.array([is_own_name(name) for name in names])[group]]] = APART
    numbers = ranks.tolist()
    return WorkGroups(
        roles=dict(zip(numbers, role.reshape(-1).tolist(), strict=True)),
        circles=dict(zip(numbers, circle.tolist(), strict=True)),
    )


def _alike(values: Floats, ratio: float) -> Ints:
    """A number for each value, the same for values between which no gap is as wide as `ratio`."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    number = np.empty(len(values), np.int64)
    number[order] = np.append(0, np.cumsum(ordered[1:] > ratio * ordered[:-1]))
    return number


def _circles(group: Ints, column: Ints, ranks: int) -> Ints:
    """The lowest column that each of `ranks` columns shares groups with, `ALONE` where it is in none."""
    circle = np.arange(ranks)
    while True:
        of_group = np.full(int(group.max(initial=0)) + 1, ranks)
        np.minimum.at(of_group, group, circle[column])
        lower = circle.copy()
        np.minimum.at(lower, column, of_group[group])
        if np.array_equal(lower, circle):
            break
        circle = lower[lower]  # halves the way to the lowest one
    circle[np.setdiff1d(np.arange(ranks), column)] = ALONE
    return circle
