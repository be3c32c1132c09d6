"""Brings all ranks of a job to a point between two steps at which nothing is in flight. Pure.

Singularity (arXiv 2202.07848) adds a small all-reduce to the job's own ones. Here ranks add nothing. Each
one publishes how many operations of each group it has entered. When asked, it stands still at its next safe
point, the end of a step. Whoever asked compares the counts:

- A rank that stands and has entered fewer operations of a group than another member must run on to its next
  safe point. The other member may wait for it.
- Once all stand with equal counts, and all operations have ended, the barrier is acquired.

So a rank that stands never starves another one for longer than a look takes. And no rank passes the earliest
safe points at which all counts are equal. Proof: let these be the cut C. While nobody has passed C, no count
is above that of C. A rank that stands at its point of C has all counts of C, so it is never told to run on.
The points are unique: where two such cuts exist, their earlier points together are one as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Channel(NamedTuple):
    """What ranks count together: the collectives of a group, or what one rank sends to another in it.

    `members` are the global ranks that count. For a direction of sends they are (sender, receiver).
    """

    group: str
    members: Sequence[int]
    directed: bool = False


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where one rank is. Counts of a rank that runs may be too low, never too high.

    - `stands`: it stands at a safe point and stays there until it is told to run on.
    - `arrivals`: at how many safe points it has arrived since it was asked.
    - `in_flight`: how many of its operations are not known to have ended.
    - `entered`: how many operations it has entered, by channel. None of a channel that is missing.
    - `complete`: whether `entered` has all channels of the rank.
    """

    stands: bool
    arrivals: int = 0
    in_flight: int = 0
    entered: Mapping[Channel, int] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows from one look. `run_on`: ranks that stand and must go on to their next safe point.

    Neither acquired nor anybody to run on: wait for those that run, and look again.
    """

    acquired: bool = False
    run_on: frozenset[int] = frozenset()


def decide(positions: Mapping[int, Position], world: Iterable[int]) -> Decision:
    """Say what follows from where the ranks are. `world` are all ranks of the job.

    >>> world = Channel("world", (0, 1))
    >>> ahead, behind = Position(stands=False, entered={world: 5}), Position(stands=True, entered={world: 4})
    >>> decide({0: ahead, 1: behind}, (0, 1)).run_on
    frozenset({1})
    >>> decide({0: Position(stands=True, entered={world: 5}), 1: behind}, (0, 1)).run_on
    frozenset({1})
    >>> decide({0: behind, 1: behind}, (0, 1)).acquired
    True
    """
    most = furthest(positions)
    run_on = frozenset(
        rank for rank, position in positions.items() if position.stands and _lags(rank, position, most)
    )
    settled = all(
        rank in positions
        and positions[rank].stands
        and positions[rank].complete
        and not positions[rank].in_flight
        for rank in world
    )
    return Decision(acquired=settled and not run_on, run_on=run_on)


def furthest(positions: Mapping[int, Position]) -> dict[int, dict[Channel, int]]:
    """Return for each rank its channels, each with the largest count of any member."""
    most: dict[Channel, int] = {}
    for position in positions.values():
        for channel, count in position.entered.items():
            most[channel] = max(count, most.get(channel, 0))
    by_rank: dict[int, dict[Channel, int]] = defaultdict(dict)
    for channel, count in most.items():
        for rank in channel.members:
            by_rank[rank][channel] = count
    return by_rank


def _lags(rank: int, position: Position, most: Mapping[int, Mapping[Channel, int]]) -> bool:
    return any(position.entered.get(channel, 0) < count for channel, count in most.get(rank, {}).items())


def waited_for(positions: Mapping[int, Position], world: Iterable[int]) -> str:
    """Say in one line why the barrier is not acquired, "" where it is."""
    world = tuple(world)
    if decide(positions, world).acquired:
        return ""
    missing = [rank for rank in world if rank not in positions or not positions[rank].stands]
    if missing:
        return f"{_ranks(missing)} came to no end of a step"
    unknown = [rank for rank in world if not positions[rank].complete]
    if unknown:
        return f"{_ranks(unknown)} has more groups or peers than can be followed"
    uneven = sorted(decide(positions, world).run_on)
    if uneven:
        return f"operations of {_ranks(uneven)} are open across the ends of steps"
    return f"{_ranks([rank for rank in world if positions[rank].in_flight])} waits for operations in flight"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
