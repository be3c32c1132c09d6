"""The operations of all ranks on one clock, as columns in the order in which each rank began them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.clocks import REFERENCE, Clock, align, align_by_transfers, on_one_clock
from pulsetrain.records.arrow import number_array, sorted_codes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROOTED = ("broadcast", "scatter", "gather", "reduce")
"""What one member does for the others: before it, that one may have work that nobody else has."""


@dataclass(frozen=True, kw_only=True)
class Operations:
    """One entry for each operation of a rank. Times in ns since `origin_ns`, UTC of the first node by name.

    `kind` is alike for operations of one phase, group size, peer and number of bytes, `shape` for those of
    one phase and group size. `collective` numbers what members do together, -1 for transfers. `members`: of
    the group, 0 for transfers. `rows` are those of the table. Times are NaN on a node of unknown clock.
    """

    origin_ns: int
    rank: Ints
    phase: Ints
    phases: tuple[str, ...]
    kind: Ints
    shape: Ints
    group: Ints
    seq: Ints
    peer: Ints
    bytes: Ints
    members: Ints
    collective: Ints
    start_ns: Floats
    end_ns: Floats
    blocked_ns: Floats
    rows: Ints
    node_of: dict[int, str]
    clocks: dict[str, Clock]

    @property
    def without_bytes(self) -> Ints:
        """As `kind`, without the number of bytes."""
        return _numbered(self.shape, self.peer)

    @property
    def rooted(self) -> NDArray[np.bool_]:
        """Which of them one member does for the others."""
        known = np.array([name.startswith(ROOTED) and name != "reduce_scatter" for name in self.phases])
        return np.asarray(known[self.phase], np.bool_)

    def of(self, rank: int) -> slice:
        """The operations of a rank."""
        first, last = np.searchsorted(self.rank, [rank, rank + 1])
        return slice(int(first), int(last))

    def on_clock(self, times_ns: Ints, node: str) -> Floats:
        """Times of a node as times here. NaN where its clock is not known."""
        since = (times_ns - self.origin_ns).astype(np.float64)
        clock = self.clocks.get(node)
        return np.full(len(since), np.nan) if clock is None else since - clock.offset(since)


def operations_of(table: pa.Table) -> Operations:
    """The operations of a table of `analysis.operations` with at least one row, in any order."""
    numbers = {
        name: table[name].to_numpy().astype(np.int64)
        for name in ("rank", "seq", "peer", "bytes", "start_ns", "end_ns", "blocked_ns")
    }
    order = np.lexsort((numbers["seq"], numbers["start_ns"], numbers["rank"]))
    numbers = {name: values[order] for name, values in numbers.items()}
    (node, nodes), (group, _), (phase, phases) = (
        sorted_codes(table[name].take(number_array(order))) for name in ("node", "group", "phase")
    )
    together = numbers["peer"] < 0
    for name in ("send", "recv"):
        together &= phase != (phases.index(name) if name in phases else -1)
    origin = int(numbers["start_ns"].min())  # keeps nanoseconds exact in floating point
    collective = np.where(together, _numbered(group, numbers["seq"]), -1)
    ended = (numbers["end_ns"] - origin).astype(np.float64)
    clocks = align(collective[together], node[together], ended[together]) or {int(node.min()): REFERENCE}
    if len(clocks) < len(nodes):
        sends = phase == (phases.index("send") if "send" in phases else -1)
        send, recv = _transfers(group, sends, ~together & ~sends, numbers)
        took = (numbers["end_ns"][recv] - numbers["start_ns"][send]).astype(np.float64)
        clocks = align_by_transfers(clocks, node[send], node[recv], took)
    members = np.where(together, _members(group, numbers["rank"], together), 0)
    first = np.unique(numbers["rank"], return_index=True)
    return Operations(
        origin_ns=origin,
        rank=numbers["rank"],
        phase=phase,
        phases=phases,
        kind=_numbered(phase, members, numbers["peer"], numbers["bytes"]),
        shape=_numbered(phase, members, numbers["peer"] >= 0),
        group=group,
        seq=numbers["seq"],
        peer=numbers["peer"],
        bytes=numbers["bytes"],
        members=members,
        collective=collective,
        start_ns=on_one_clock((numbers["start_ns"] - origin).astype(np.float64), node, clocks)[0],
        end_ns=on_one_clock(ended, node, clocks)[0],
        blocked_ns=numbers["blocked_ns"].astype(np.float64),
        rows=order,
        node_of={int(rank): nodes[int(node[at])] for rank, at in zip(*first, strict=True)},
        clocks={nodes[number]: clock for number, clock in clocks.items()},
    )


def _transfers(
    group: Ints, sends: NDArray[np.bool_], receives: NDArray[np.bool_], numbers: dict[str, Ints]
) -> tuple[Ints, Ints]:
    """The rows of sends, and of the receives on the other side."""
    source = np.where(sends, numbers["rank"], numbers["peer"])
    target = np.where(sends, numbers["peer"], numbers["rank"])
    number = _numbered(group, source, target, numbers["seq"])
    send, recv = np.flatnonzero(sends), np.flatnonzero(receives)
    _, i, j = np.intersect1d(number[send], number[recv], return_indices=True)
    return send[i], recv[j]


def _numbered(*columns: NDArray[np.generic]) -> Ints:
    """One number for each different row of these columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(values) + code, return_inverse=True)
    return np.asarray(number, np.int64)


def _members(group: Ints, rank: Ints, together: NDArray[np.bool_]) -> Ints:
    """How many ranks the group of each operation has, as far as they are seen in it."""
    most = int(rank.max()) + 1
    pairs = np.unique(group[together] * most + rank[together]) // most
    return np.asarray(np.bincount(pairs, minlength=int(group.max()) + 1)[group], np.int64)
