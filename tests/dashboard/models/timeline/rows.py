"""Rows of `views.spans` as a test needs them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.timeline.drawing import Drawing, draw
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.dashboard.models.timeline.spans import Spans, spans_of

NOBODY = Attribution()
MS = 1_000_000


def row(start: int = 0, length: int = 10, rank: int = 0, **values: Any) -> dict[str, Any]:
    """One span."""
    return {
        "attempt": 1, "node": "n0", "rank": rank, "step": 3, "microbatch": -1, "phase": "forward",
        "category": "compute", "lane": "host", "group": "", "seq": -1, "parent": "", "bytes": 0,
        "start_ns": start, "duration_ns": length, "blocked_ns": -1, "peer": -1, "open": False,
        "spans_in_all": 1, **values,
    }  # fmt: skip


def collective(start: int = 0, length: int = 10, rank: int = 0, **values: Any) -> dict[str, Any]:
    """A span of a collective."""
    given = {"phase": "all_reduce", "category": "communication", "group": "dp", "seq": 1, **values}
    return row(start, length, rank, **given)


def transfer(
    phase: str, rank: int, peer: int, start: int = 0, length: int = 10, **values: Any
) -> dict[str, Any]:
    """A send or a receive."""
    return collective(start, length, rank, **{"phase": phase, "peer": peer, "group": "pp", **values})


def spans(*rows: dict[str, Any]) -> Spans:
    """Rows as columns. `spans_in_all` is what the first row says."""
    return spans_of(pa.Table.from_pylist(list(rows)))


def drawing(*rows: dict[str, Any], clocks: NodeClocks | None = None, blame: Attribution = NOBODY) -> Drawing:
    """What is drawn of rows."""
    return draw(spans(*rows), clocks or NodeClocks(), blame)
