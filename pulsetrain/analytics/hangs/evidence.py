"""What is known of each rank of a job that does not move.

Live reports, Flight Recorder dumps and NCCL RAS reports are all turned into `RankEvidence`. The diagnosis in
`hang` reads nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

from pulsetrain.protocol.transfer_peer import ANY_SOURCE, NO_PEER

GroupKey = tuple[str, tuple[int, ...]]  # a process group: its name and its sorted members


class HashedGroupKey(tuple[str, tuple[int, ...]]):
    """A `GroupKey` that computes its hash once.

    A plain tuple computes it at every look-up, in time that grows with the members of the group. Over the
    groups of a large fleet that is quadratic.

    >>> HashedGroupKey("dp", [9, 1]) == ("dp", (1, 9))
    True
    >>> hash(HashedGroupKey("dp", [9, 1])) == hash(("dp", (1, 9)))
    True
    """

    _hash: int

    def __new__(cls, name: str, members: Iterable[int]) -> Self:
        key = super().__new__(cls, (name, tuple(sorted(members))))
        key._hash = super().__hash__(key)
        return key

    def __hash__(self) -> int:
        return self._hash


class CollectiveKey(NamedTuple):
    """One collective: all members of the group take part in it with the same sequence number."""

    group: GroupKey
    seq: int


# Operations whose payload may differ from rank to rank by design.
_UNEVEN = ("all_to_all", "alltoall", "gather_v", "barrier", "coalesced")
_ROOTED = ("gather", "scatter")  # the payload of the root differs from that of the others


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One operation in flight: a collective, or a send or recv.

    `seq` is the sequence number in the group. `peer` is the other rank of a send or recv, `ANY_SOURCE` for a
    recv that takes from anybody, `NO_PEER` for a collective. `size` is payload and type as text, empty where
    it is unknown. `order` is the operation's place in the rank's own program. `started` says whether the
    device began the operation, None where nothing records that. `may_have_ended`: it ends on a device, and
    its rank has not looked since.
    """

    group: GroupKey
    seq: int
    op: str
    size: str = ""
    peer: int = NO_PEER
    order: int = 0
    started: bool | None = None
    may_have_ended: bool = False

    @property
    def is_transfer(self) -> bool:
        """Whether it is a send or recv."""
        return self.peer != NO_PEER

    def sides(self, rank: int) -> frozenset[int]:
        """The ranks that can end this transfer of `rank`: its peer, or any other member of the group."""
        if self.peer == ANY_SOURCE:
            return frozenset(self.group[1]) - {rank}
        return frozenset({self.peer})

    @property
    def signature(self) -> tuple[str, str]:
        """What all members must agree on: the operation, and its payload unless that may differ."""
        uneven = self.op in _ROOTED or any(word in self.op for word in _UNEVEN)
        return (self.op, "" if uneven else self.size)

    @property
    def collective(self) -> CollectiveKey:
        """The collective that this wait is part of."""
        return CollectiveKey(self.group, self.seq)


def meets(wait: Wait, rank: int, other: Wait, other_rank: int) -> bool:
    """Whether these are the two sides of one transfer: a send of one rank and a recv of the other."""
    return (
        wait.is_transfer
        and other.is_transfer
        and ("send" in wait.op) != ("send" in other.op)
        and other_rank in wait.sides(rank)
        and rank in other.sides(other_rank)
    )


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """What is known of one rank.

    `reported` is false for a rank that left no report or dump. `computing`: it is in a phase that is no
    communication. `blocked`: its main thread is known to wait for an operation. `waits_in` is the name of
    that operation's group, "" if unknown. Other threads may have operations in flight in other groups.
    `silence_ns` is the time since it last made progress. `enqueued` and `completed` are the newest sequence
    numbers in each group. `transferred` is the newest completed transfer of a group of two, where sends and
    recvs of both ranks share one numbering.
    """

    rank: int
    state: str = "running"
    reported: bool = True
    computing: bool = False
    blocked: bool = False
    waits_in: str = ""
    silence_ns: int = 0
    enqueued: Mapping[GroupKey, int] = field(default_factory=dict)
    completed: Mapping[GroupKey, int] = field(default_factory=dict)
    transferred: Mapping[GroupKey, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()

    @cached_property
    def oldest_wait(self) -> Wait | None:
        """The operation in flight that comes first in the rank's program, or None where there is none.

        One in the group in which the main thread waits comes before those of other groups.
        """
        return min(
            self.waits, key=lambda w: (w.group[0] != self.waits_in, w.order, w.group, w.seq), default=None
        )

    @property
    def stands_in_oldest(self) -> bool:
        """Whether the main thread is known to wait for `oldest_wait`, and that has not ended on a device."""
        oldest = self.oldest_wait
        if oldest is None or not self.blocked or oldest.may_have_ended:
            return False
        if self.waits_in:
            return oldest.group[0] == self.waits_in
        return len({wait.group for wait in self.waits}) == 1

    def stands_outside(self, group: GroupKey) -> bool:
        """Return whether the main thread is known to wait for an operation of another group."""
        return self.waits_in not in ("", group[0])
