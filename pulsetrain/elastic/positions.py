"""Where a rank is, as agents write it and the hub reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pulsetrain.core.errors import CorruptData
from pulsetrain.core.json import JsonObject
from pulsetrain.elastic.barrier import Channel, Position

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)


def packed_members(members: Sequence[int]) -> list[int]:
    """Write evenly spaced members as first, stride and number, others one by one behind a stride of 0.

    >>> packed_members((0, 2, 4)), packed_members((0, 1, 5))
    ([0, 2, 3], [0, 0, 3, 0, 1, 5])
    """
    first = members[0] if members else 0
    stride = members[1] - first if len(members) > 1 else 1
    if stride > 0 and tuple(members) == tuple(range(first, first + stride * len(members), stride)):
        return [first, stride, len(members)]
    return [first, 0, len(members), *members]


def read_members(packed: Sequence[int]) -> Sequence[int]:
    """Return what `packed_members` wrote. A range stays one, so that comparing large groups is cheap."""
    first, stride, count = packed[:3]
    return range(first, first + stride * count, stride) if stride else tuple(packed[3:])


def encode(
    *,
    stands: bool,
    arrivals: int,
    in_flight: int,
    complete: bool,
    groups: Iterable[tuple[str, Sequence[int], int]],
    pairs: Iterable[tuple[str, int, bool, int]],
) -> JsonObject:
    """Write one position. `groups` are (name, members, entered), `pairs` (group, peer, sends, entered)."""
    return {
        "stands": stands,
        "arrivals": arrivals,
        "in_flight": in_flight,
        "complete": complete,
        "groups": [[name, packed_members(members), entered] for name, members, entered in groups],
        "pairs": [[name, peer, sends, entered] for name, peer, sends, entered in pairs],
    }


def decode(rank: int, text: object) -> Position:
    """Return the position of `rank`. Raises `CorruptData`."""
    try:
        fields = cast("Mapping[str, object]", text)
        entered = {
            Channel(str(name), read_members([int(m) for m in members])): int(count)
            for name, members, count in cast("list[tuple[str, list[int], int]]", fields["groups"])
        }
        for name, peer, sends, count in cast("list[tuple[str, int, bool, int]]", fields["pairs"]):
            ends = (rank, int(peer)) if sends else (int(peer), rank)
            entered[Channel(str(name), ends, directed=True)] = int(count)
        return Position(
            stands=bool(fields["stands"]),
            arrivals=int(cast("int", fields["arrivals"])),
            in_flight=int(cast("int", fields["in_flight"])),
            entered=entered,
            complete=bool(fields["complete"]),
        )
    except _MALFORMED as error:
        raise CorruptData(f"position of rank {rank}: {str(text)[:80]!r} ({error})") from error
