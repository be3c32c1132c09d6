"""What a rank of a job with replicas of unequal size is, and what it does: its shards, groups and samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch.distributed as dist

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.gradient_sync import ReplicaGroups
from pulsetrain.elastic.shard_mapping import ShardMapping, shard_mapping
from pulsetrain.elastic.unequal_batch import deal_batch
from pulsetrain.elastic.unequal_groups import process_groups
from pulsetrain.elastic.unit_sizes import REPLICA_DEGREES


@dataclass(frozen=True, kw_only=True)
class UnequalReplicas:
    """The tensor-parallel degree of each replica, and the global rank of this process.

    Ranks are numbered replica by replica. Raises `UsageError` for a rank that none has.

    >>> mine = UnequalReplicas(degrees=(4, 3), rank=5)
    >>> mine.replica, mine.local_rank, mine.degree, mine.held(9), list(mine.samples(14))
    (1, 1, 3, (3, 4, 5), [8, 9, 10, 11, 12, 13])
    """

    degrees: tuple[int, ...]
    rank: int

    def __post_init__(self) -> None:
        """Check what a script or an agent said."""
        if not self.degrees or min(self.degrees) < 1:
            raise UsageError(f"degrees {list(self.degrees)}: allowed: one or more, each 1 or more")
        if not 0 <= self.rank < sum(self.degrees):
            raise UsageError(f"rank {self.rank}: allowed: 0 to {sum(self.degrees) - 1}, by the degrees")

    @classmethod
    def of_environment(cls, degree: int, environ: Mapping[str, str] = os.environ) -> UnequalReplicas:
        """Of this process. `degree` is that of a whole replica.

        Where the agent does not say the degrees, all replicas are whole. Raises `UsageError`.
        """
        world, said = int(environ.get("WORLD_SIZE", "1")), environ.get(REPLICA_DEGREES, "")
        degrees = tuple(map(int, said.split(","))) if said else (degree,) * (world // degree)
        if sum(degrees) != world or max(degrees, default=0) > degree:
            raise UsageError(
                f"degrees {list(degrees)} of {world} ranks: allowed: up to {degree} each, {world} together"
            )
        return cls(degrees=degrees, rank=int(environ.get("RANK", "0")))

    @property
    def replica(self) -> int:
        """The replica that this rank belongs to."""
        return next(number for number, end in enumerate(accumulate(self.degrees)) if self.rank < end)

    @property
    def degree(self) -> int:
        """The tensor-parallel degree of this rank's replica."""
        return self.degrees[self.replica]

    @property
    def first_rank(self) -> int:
        """The global rank of the replica's first rank."""
        return sum(self.degrees[: self.replica])

    @property
    def local_rank(self) -> int:
        """This rank's place in its replica."""
        return self.rank - self.first_rank

    def mapping(self, units: int) -> ShardMapping:
        """How this replica holds `units` heads or columns."""
        return shard_mapping(units, self.degree, min(self.degrees))

    def held(self, units: int) -> tuple[int, ...]:
        """The units that this rank computes with, in the order of its buffer."""
        return self.mapping(units).compute[self.local_rank]

    def samples(self, count: int) -> range:
        """Which samples of a global batch this replica computes, so that replicas end their step together."""
        shares = deal_batch(count, self.degrees)
        first = sum(shares[: self.replica])
        return range(first, first + shares[self.replica])

    def groups(self) -> ReplicaGroups:
        """Make the process groups. All ranks call it, once in an attempt."""
        members = process_groups(self.degrees)
        made = {ranks: _group(ranks) for ranks in (*members.tensor, *members.data)}
        partners = next(ranks for ranks in members.data if self.rank in ranks)
        return ReplicaGroups(
            local_rank=self.local_rank,
            first_rank=self.first_rank,
            degree=self.degree,
            tensor=made[members.tensor[self.replica]],
            data=made[partners] if len(partners) > 1 else None,
        )


def _group(ranks: Sequence[int]) -> dist.ProcessGroup:
    """A new group. Where this rank is no member, it is a number that nobody uses."""
    return cast("dist.ProcessGroup", dist.new_group(list(ranks)))
