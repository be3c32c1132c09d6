"""Which receive took what a send gave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pulsetrain.dashboard.models.timeline.spans import Bools, Ints, Spans


@dataclass(frozen=True, kw_only=True)
class Arrows:
    """Row numbers of spans: `send[i]` gave what `recv[i]` took. `lonely` sends and receives have no partner
    among the shown spans."""

    send: Ints
    recv: Ints
    lonely: int


def arrows_of(spans: Spans) -> Arrows:
    """The pairs of sends and receives: the same attempt, group and `seq`, and each the other's `peer`.

    `seq` counts sends and receives of a group for each pair and direction, so it tells them apart. Spans that
    lack peer, group or `seq` have no partner. Where a number occurs twice, the first counts.
    """
    numbered = (spans["peer"] >= 0) & (spans["seq"] >= 0) & ~spans.names["group"].of("")
    send = _by_key(spans, numbered & spans.names["phase"].of("send"), from_column="rank", to_column="peer")
    recv = _by_key(spans, numbered & spans.names["phase"].of("recv"), from_column="peer", to_column="rank")
    pairs = sorted((row, recv[key]) for key, row in send.items() if key in recv)
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Arrows(send=both[:, 0], recv=both[:, 1], lonely=len(send) + len(recv) - 2 * len(pairs))


def _by_key(
    spans: Spans, chosen: Bools, *, from_column: str, to_column: str
) -> dict[tuple[int, int, int, int, int], int]:
    """The row of each transfer: its attempt, group, from, to and number."""
    rows = np.flatnonzero(chosen)
    columns = (
        spans["attempt"][rows],
        spans.names["group"].codes[rows],
        spans[from_column][rows],
        spans[to_column][rows],
        spans["seq"][rows],
    )
    keys = zip(*(column.tolist() for column in columns), strict=True)
    found: dict[tuple[int, int, int, int, int], int] = {}
    for key, row in zip(keys, rows.tolist(), strict=True):
        found.setdefault(key, row)
    return found
