"""What is known of each rank when nobody moves, whoever tells it: live reports, dumps, or NCCL RAS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

Key = tuple[str, tuple[int, ...]]  # a process group: its name and its sorted members


class GroupKey(tuple[str, tuple[int, ...]]):
    """A `Key` that keeps its hash. A tuple makes it anew at every look-up, which takes as long as the group
    has members: over the groups of a large fleet that is quadratic.

    >>> GroupKey("dp", [9, 1]) == ("dp", (1, 9)) and hash(GroupKey("dp", [9, 1])) == hash(("dp", (1, 9)))
    True
    """

    _hash: int

    def __new__(cls, name: str, members: Iterable[int]) -> Self:
        key = super().__new__(cls, (name, tuple(sorted(members))))
        key._hash = super().__hash__(key)
        return key

    def __hash__(self) -> int:
        return self._hash


# Operations whose payload may differ from rank to rank by design.
_UNEVEN = ("all_to_all", "alltoall", "gather_v", "barrier", "coalesced")
_ROOTED = ("gather", "scatter")  # the root's payload is not the others'


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One operation in flight: a collective's `seq` in its group, or a send or recv with `peer` >= 0.

    Of several in one group it is the oldest. `order` is its place in the rank's own program.
    """

    group: Key
    seq: int
    op: str
    size: str = ""  # payload and type, compared as text; "": unknown
    peer: int = -1
    order: int = 0
    started: bool | None = None  # whether the device began it; None: not recorded

    @property
    def signature(self) -> tuple[str, str]:
        """What every member must agree on at one sequence number."""
        uneven = self.op in _ROOTED or any(word in self.op for word in _UNEVEN)
        return (self.op, "" if uneven else self.size)

    @property
    def same(self) -> tuple[Key, int]:
        """What a collective of all members has in common."""
        return (self.group, self.seq)


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """What is known of one rank. `silence_ns` is the time since it last did anything."""

    rank: int
    state: str = "running"
    heard: bool = True
    computing: bool = False  # inside a phase that is no communication
    silence_ns: int = 0
    enqueued: Mapping[Key, int] = field(default_factory=dict)
    completed: Mapping[Key, int] = field(default_factory=dict)
    transferred: Mapping[Key, int] = field(default_factory=dict)
    """newest transfer completed in a group of two, where sends and recvs of both are numbered together"""
    waits: tuple[Wait, ...] = ()

    @cached_property
    def first(self) -> Wait | None:
        """The operation in flight that comes first in the rank's program."""
        return min(self.waits, key=lambda w: (w.order, w.group, w.seq), default=None)
