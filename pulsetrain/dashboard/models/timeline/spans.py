"""Spans as columns in one order, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.records.arrow import ArrowColumn, sorted_codes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NUMBERS: tuple[str, ...] = (
    *("attempt", "rank", "step", "microbatch", "seq", "bytes", "start_ns", "duration_ns"),
    *("blocked_ns", "peer"),
)
_NAMES = ("phase", "category", "lane", "group", "parent", "node")
_HOST_LANES = ("host", "main")
AGE_NS = 10 * 10**9
"""The grain of the age of what is open, so that a hang does not change with every look."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """A column of names: `codes` point into `names`, which are sorted."""

    codes: Ints
    names: tuple[str, ...]

    def of(self, *wanted: str) -> Bools:
        """Where the column has one of these names."""
        return np.isin(self.codes, [i for i, name in enumerate(self.names) if name in wanted])

    def starts(self, *beginnings: str) -> Bools:
        """Where the column's name begins with one of these."""
        return np.isin(self.codes, [i for i, name in enumerate(self.names) if name.startswith(beginnings)])

    def at(self, row: int) -> str:
        """The name in a row."""
        return self.names[int(self.codes[row])]

    def take(self, rows: Ints) -> Names:
        """The column of these rows."""
        return replace(self, codes=self.codes[rows])


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The spans of `views.spans` as columns, in order of rank, lane and start. `in_all` counts also what the
    query left out.

    Numbers are as in the record `spans`. Times are UTC ns on the clock of the node, until `on_one_clock`.
    """

    numbers: Mapping[str, Ints]
    names: Mapping[str, Names]
    open: Bools
    in_all: int

    def __len__(self) -> int:
        return len(self.open)

    def __getitem__(self, name: str) -> Ints:
        """A column of numbers."""
        return self.numbers[name]

    @property
    def end_ns(self) -> Ints:
        """When each span ended. One that is open: how far it is known."""
        return self["start_ns"] + self["duration_ns"]

    @property
    def communicates(self) -> Bools:
        """Which spans are communication."""
        return self.names["category"].of("communication")

    @property
    def on_host(self) -> Bools:
        """Which spans were recorded on the rank's main thread."""
        return self.names["lane"].of(*_HOST_LANES)

    @property
    def on_device(self) -> Bools:
        """Which spans were timed on the rank's device."""
        return self.names["lane"].starts("cuda", "stream")

    def take(self, rows: Ints) -> Spans:
        """These rows, in this order."""
        return replace(
            self,
            numbers={name: values[rows] for name, values in self.numbers.items()},
            names={name: values.take(rows) for name, values in self.names.items()},
            open=self.open[rows],
        )

    def ordered(self, first: Sequence[int] = ()) -> Spans:
        """The same spans by rank, lane and start, ranks of `first` before all others. The longer of two that
        start together comes first."""
        keys = ("attempt", "microbatch", "seq")
        last = [self[name] for name in keys] + [self.names["phase"].codes, -self["duration_ns"]]
        lane = (self["start_ns"], self.communicates, self.names["lane"].codes, ~self.on_host, self["rank"])
        return self.take(np.lexsort((*last, *lane, ~np.isin(self["rank"], first))))

    def longest(self, count: int) -> Spans:
        """The longest `count` spans and all that are open, in the same order."""
        if count >= len(self):
            return self
        order = np.lexsort((np.arange(len(self)), -self["duration_ns"], ~self.open))
        return self.take(np.sort(order[:count]))

    def on_one_clock(self, clocks: NodeClocks) -> Spans:
        """The same spans with every start on the reference's clock, where the clock of its node is known."""
        start = self["start_ns"].copy()
        node = self.names["node"]
        for code, name in enumerate(node.names):
            mine = node.codes == code
            start[mine] -= clocks.ahead_ns(name, start[mine])
        return replace(self, numbers={**self.numbers, "start_ns": start}).ordered()

    def with_ages(self, *, live_attempt: int, now_ns: int) -> Spans:
        """The same spans, where an open one of the attempt that runs (-1: none) is as old as it is now.

        An age above ten seconds is rounded down to ten seconds. An open span of an attempt that is over keeps
        the age at which it was last seen.
        """
        live = self.open & (self["attempt"] == live_attempt)
        age = np.maximum(self["duration_ns"], now_ns - self["start_ns"])
        age = np.where(age >= AGE_NS, age // AGE_NS * AGE_NS, self["duration_ns"])
        return replace(
            self, numbers={**self.numbers, "duration_ns": np.where(live, age, self["duration_ns"])}
        )


def spans_of(table: pa.Table) -> Spans:
    """The rows of `views.spans`, in any order. An empty table has no spans."""
    if not table.num_rows:
        nothing = np.zeros(0, np.int64)
        return Spans(
            numbers=dict.fromkeys(_NUMBERS, nothing),
            names=dict.fromkeys(_NAMES, Names(codes=nothing, names=())),
            open=nothing.astype(np.bool_),
            in_all=0,
        )
    return Spans(
        numbers={name: table[name].to_numpy().astype(np.int64) for name in _NUMBERS},
        names={name: _names(table[name]) for name in _NAMES},
        open=table["open"].to_numpy().astype(np.bool_),
        in_all=int(table["spans_in_all"][0].as_py()),
    ).ordered()


def _names(column: ArrowColumn) -> Names:
    codes, names = sorted_codes(column)
    return Names(codes=codes, names=names)
