"""The all-to-all that takes a group from one partition of its units to another."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.shard_mapping import Partition


@dataclass(frozen=True, kw_only=True)
class RankExchange:
    """One rank's part of an all-to-all. All figures count units.

    `send_order` are positions in the buffer before, in the order in which they are sent. The first
    `send_counts[0]` of them go to rank 0, and so on. `recv_counts` is what comes from each rank, in the
    order of ranks. The unit that comes as number i belongs at position `recv_order[i]` of the buffer after.
    """

    send_order: tuple[int, ...]
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]
    recv_order: tuple[int, ...]


def exchange(before: Partition, after: Partition) -> tuple[RankExchange, ...]:
    """What each rank sends and receives, so that a group goes from `before` to `after`.

    Raises `UsageError` where the two do not hold the same units once each.

    >>> first, second = exchange(((0, 1), (2, 3)), ((0, 1, 3), (2,)))
    >>> second.send_counts, second.send_order, first.recv_order
    ((1, 1), (1, 0), (0, 1, 2))
    """
    source = _holders(before)
    target = _holders(after)
    if len(before) != len(after) or source.keys() != target.keys():
        raise UsageError("partitions of an exchange: allowed: the same ranks and the same units")
    sends = [
        sorted(range(len(part)), key=lambda position, part=part: target[part[position]])  # type: ignore[misc]
        for part in before
    ]
    return tuple(
        RankExchange(
            send_order=tuple(sends[rank]),
            send_counts=_counts([target[unit] for unit in before[rank]], len(before)),
            recv_counts=_counts([source[unit] for unit in after[rank]], len(before)),
            recv_order=_arrivals(rank, before, after, sends, target),
        )
        for rank in range(len(before))
    )


def _holders(partition: Partition) -> dict[int, int]:
    holder = {unit: rank for rank, part in enumerate(partition) for unit in part}
    if len(holder) != sum(map(len, partition)):
        raise UsageError("partition: allowed: each unit on one rank")
    return holder


def _counts(ranks: list[int], degree: int) -> tuple[int, ...]:
    counts = [0] * degree
    for rank in ranks:
        counts[rank] += 1
    return tuple(counts)


def _arrivals(
    rank: int, before: Partition, after: Partition, sends: list[list[int]], target: dict[int, int]
) -> tuple[int, ...]:
    """Where each unit that arrives at `rank` belongs, in the order of arrival."""
    place = {unit: position for position, unit in enumerate(after[rank])}
    return tuple(
        place[part[position]]
        for part, order in zip(before, sends, strict=True)
        for position in order
        if target[part[position]] == rank
    )
