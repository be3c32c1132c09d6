"""How far the clocks of the shown nodes are apart, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.clocks import Clock, align

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NodeClocks:
    """The clocks of nodes beside that of the first. Clocks count from `origin_ns`, UTC.

    A node that shared too few collectives with another has no clock here. Its times stay as recorded.
    """

    origin_ns: int = 0
    clocks: Mapping[str, Clock] = field(default_factory=dict)

    def ahead_ns(self, node: str, times_ns: Ints) -> Ints:
        """By how much the clock of a node was ahead at these times of its own. 0 where it is not known."""
        clock = self.clocks.get(node)
        if clock is None:
            return np.zeros(len(times_ns), np.int64)
        return np.round(clock.offset((times_ns - self.origin_ns).astype(np.float64))).astype(np.int64)

    def error_ns(self, node: str) -> int | None:
        """How far an aligned time of this node may be off. None where its clock was not compared."""
        clock = self.clocks.get(node)
        return None if clock is None else round(clock.error_ns)


def node_clocks(table: pa.Table) -> NodeClocks:
    """The clocks from the rows of `timeline.collective_ends`, in any order. See `clocks.align`."""
    if not table.num_rows:
        return NodeClocks()
    rows = table.to_pydict()
    nodes = sorted(set(rows["node"]))
    keys = list(zip(rows["attempt"], rows["step"], rows["group"], rows["seq"], strict=True))
    numbers = {key: i for i, key in enumerate(sorted(set(keys)))}
    ends = np.array(rows["end_ns"], np.int64)
    origin = int(ends.min())  # keeps nanoseconds exact in floating point
    found = align(
        np.array([numbers[key] for key in keys], np.int64),
        np.array([nodes.index(name) for name in rows["node"]], np.int64),
        (ends - origin).astype(np.float64),
    )
    return NodeClocks(origin_ns=origin, clocks={nodes[number]: clock for number, clock in found.items()})
