"""Ranks that wait for each other and stand still, while others that have nothing to do with them move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pulsetrain.analytics.hangs.job_view import JobView
from pulsetrain.protocol.messages import GroupStatus
from pulsetrain.protocol.transfer_peer import NO_PEER


class StillGroup(NamedTuple):
    """Ranks that all stand still, and a group in which one waits. `silence_ns` is their shortest silence."""

    group: str
    ranks: tuple[int, ...]
    silence_ns: int


def find(view: JobView, limit_ns: int) -> StillGroup | None:
    """Return the ranks that stand still for longest, all of them for `limit_ns` or longer, None without any.

    Ranks belong together where one waits for an operation with the other, directly or through others. Some
    of which nothing is known, or that are not of the job, may move.
    """
    if max(view.ages_ns, default=0) < limit_ns:
        return None
    ages_ns = {status.rank: age_ns for status, age_ns in zip(view.ranks, view.ages_ns, strict=True)}
    together, waits = _Together(), dict[int, str]()
    for status in view.ranks:
        for group in status.groups:
            if group.op and len(group.members) != 1:
                waits.setdefault(status.rank, group.group)
                together.join((status.rank, together.other(group)))
    found: dict[int, list[int]] = {}
    for rank in list(together.first):
        found.setdefault(together.of(rank), []).append(rank)
    still = [
        StillGroup(waits[min(waits.keys() & set(ranks))], tuple(sorted(ranks)), silence_ns)
        for ranks in found.values()
        if len(ranks) > 1 and (silence_ns := min(ages_ns.get(rank, 0) for rank in ranks)) >= limit_ns
    ]
    return max(still, key=lambda group: (group.silence_ns, group.ranks), default=None)


class _Together:
    """Sets of ranks, merged by the ranks that they share."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}
        self._members: dict[str, tuple[int, ...]] = {}  # of the group of this name that was met last

    def other(self, group: GroupStatus) -> int:
        """Return a rank that can end an operation: the peer, or a member, with whom all members are one set.

        -1 stands for ranks that are not known.
        """
        if group.peer != NO_PEER and group.peer >= 0:
            return group.peer
        if not group.members:
            return -1
        if self._members.get(group.group) != group.members:
            self._members[group.group] = group.members
            self.join(group.members)
        return group.members[0]

    def of(self, rank: int) -> int:
        """Return the rank that stands for the set."""
        first = self.first
        while first.setdefault(rank, rank) != rank:
            first[rank] = rank = first[first[rank]]
        return rank

    def join(self, ranks: Iterable[int]) -> None:
        """Make one set of those of all `ranks`."""
        sets = {self.of(rank) for rank in ranks}
        self.first |= dict.fromkeys(sets, min(sets))
