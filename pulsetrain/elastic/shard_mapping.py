"""Which rank holds which units, where replicas have tensor-parallel groups of unequal size.

A unit is what is never split: an attention head, or a column of a hidden layer with its row of the next
matrix. A replica of the reduced degree holds its units contiguously. A larger replica computes on an even
share of each rank, and moves gradients inside its own group so that each of them meets its partner one to
one. The method is that of Nonuniform Tensor Parallelism (arXiv 2504.06095).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pulsetrain.core.errors import UsageError

Partition = tuple[tuple[int, ...], ...]
"""For each rank of a group, the units that it holds in the order of its buffer."""


@dataclass(frozen=True, kw_only=True)
class ShardMapping:
    """The units of one replica of the full degree, next to replicas of the reduced degree.

    `reduced` is the partition of a replica of the reduced degree. `sync` is what the larger replica holds
    while gradients are summed over replicas, empty for its spare ranks. `compute` is what it holds
    otherwise. `core` names the ranks of the larger replica that sum, in the order of their partners.
    """

    reduced: Partition
    sync: Partition
    compute: Partition
    core: tuple[int, ...]

    @property
    def moved(self) -> int:
        """Units that change their rank between `compute` and `sync`, once each way."""
        return moved_units(self.compute, self.sync)


def contiguous(units: int, degree: int) -> Partition:
    """Units in order over `degree` ranks. The first ranks hold one more where it does not divide.

    >>> contiguous(7, 3)
    ((0, 1, 2), (3, 4), (5, 6))
    """
    if units < 0 or degree < 1:
        raise UsageError(f"{units} units over {degree} ranks: allowed: units from 0, ranks from 1")
    share, more = divmod(units, degree)
    bounds = [rank * share + min(rank, more) for rank in range(degree + 1)]
    return tuple(tuple(range(low, high)) for low, high in pairwise(bounds))


def shard_mapping(
    units: int, full_degree: int, reduced_degree: int, core: Sequence[int] | None = None
) -> ShardMapping:
    """How a replica of `full_degree` shares `units`, so that it can sum with one of `reduced_degree`.

    Each spare rank takes units in turn from the end of what a core rank holds during the sum, while that
    rank has more than its even share. So all ranks compute on an even share (within one unit), as few units
    move as can be, and core ranks send equal amounts (within one unit). `core` are the ranks that sum, by
    default the first. Raises `UsageError`.

    >>> mapping = shard_mapping(24, 8, 6)
    >>> mapping.sync[0], mapping.compute[0], mapping.compute[6]
    ((0, 1, 2, 3), (0, 1, 2), (3, 7, 11))
    """
    if not 1 <= reduced_degree <= full_degree:
        raise UsageError(f"reduced degree {reduced_degree}: allowed: 1 to the full degree ({full_degree})")
    core = tuple(range(reduced_degree) if core is None else core)
    if len(set(core)) != reduced_degree or not set(core) <= set(range(full_degree)):
        raise UsageError(f"core ranks {core}: allowed: {reduced_degree} different ranks below {full_degree}")
    spares = [rank for rank in range(full_degree) if rank not in core]
    reduced = contiguous(units, reduced_degree)
    shares = [len(part) for part in contiguous(units, full_degree)]
    kept, taken = _take_in_turn(reduced, shares)
    sync: list[tuple[int, ...]] = [()] * full_degree
    compute: list[tuple[int, ...]] = [()] * full_degree
    for rank, part, rest in zip(core, reduced, kept, strict=True):
        sync[rank], compute[rank] = part, rest
    for rank, part in zip(spares, taken, strict=True):
        compute[rank] = part
    return ShardMapping(reduced=reduced, sync=tuple(sync), compute=tuple(compute), core=core)


def _take_in_turn(reduced: Partition, shares: Sequence[int]) -> tuple[Partition, Partition]:
    """What the core ranks keep, and what each spare takes from them, one unit of each in turn."""
    left = [list(part) for part in reduced]
    taken = []
    core = 0
    for share in shares[len(reduced) :]:
        mine = []
        for _ in range(share):
            while len(left[core]) <= shares[core]:
                core = (core + 1) % len(left)
            mine.append(left[core].pop())
            core = (core + 1) % len(left)
        taken.append(tuple(sorted(mine)))
    return tuple(map(tuple, left)), tuple(taken)


def overlaps(one: Partition, other: Partition) -> list[list[int]]:
    """Units that rank i of `one` and rank j of `other` both hold, as rows i and columns j.

    Gradients that are summed without moving them first need a transfer for each entry above 0.
    """
    holder = {unit: rank for rank, part in enumerate(other) for unit in part}
    table = [[0] * len(other) for _ in one]
    for rank, part in enumerate(one):
        for unit in part:
            table[rank][holder[unit]] += 1
    return table


def moved_units(before: Partition, after: Partition) -> int:
    """Units that `after` holds on another rank than `before`."""
    table = overlaps(before, after)
    return sum(map(sum, table)) - sum(table[rank][rank] for rank in range(min(len(before), len(after))))
