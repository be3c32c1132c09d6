"""How many operations a rank has entered, and whether it stands still for a barrier."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.collectors.reading.status_page import GroupCell


@dataclass(frozen=True, kw_only=True, slots=True)
class PairCount:
    """What a rank has sent to `peer` in a group (`sends`), or received from it. `group` is an index."""

    group: int
    peer: int
    sends: bool
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPosition:
    """See `elastic.barrier.Position`. `ran_on`: how often the rank ran on by itself, its time being over."""

    stands: bool
    arrivals: int
    in_flight: int
    ran_on: int
    complete: bool
    groups: tuple[GroupCell, ...]
    pairs: tuple[PairCount, ...]
