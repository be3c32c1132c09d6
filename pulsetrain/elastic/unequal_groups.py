"""Which ranks of unequal replicas work together, and which domains form a replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class InactiveRanks:
    """`spares` ranks of each affected replica do not compute. `by_replica` names them by local rank."""

    spares: int
    by_replica: Mapping[int, tuple[int, ...]]


def inactive_ranks(failed: Mapping[int, Sequence[int]], degree: int) -> InactiveRanks:
    """Bring all affected replicas to one degree: that of the replica with the most failures.

    `failed` maps a replica to the local ranks that it lost, which need not be neighbours. Where fewer failed,
    the highest healthy local ranks rest as well. Raises `UsageError`.

    >>> inactive_ranks({0: [2, 5], 1: [1]}, 8).by_replica
    {0: (2, 5), 1: (1, 7)}
    """
    lost = {replica: set(ranks) for replica, ranks in failed.items() if ranks}
    spares = max(map(len, lost.values()), default=0)
    for replica, ranks in lost.items():
        if not ranks <= set(range(degree)):
            raise UsageError(f"failed ranks {sorted(ranks)} of replica {replica}: allowed: 0 to {degree - 1}")
    if spares >= degree:
        raise UsageError(f"{spares} failed ranks in a group of {degree}: allowed: fewer than the group has")
    by_replica = {}
    for replica, ranks in sorted(lost.items()):
        healthy = [rank for rank in range(degree) if rank not in ranks]
        resting = healthy[len(healthy) - (spares - len(ranks)) :]
        by_replica[replica] = tuple(sorted(ranks | set(resting)))
    return InactiveRanks(spares=spares, by_replica=by_replica)


def active_ranks(inactive: InactiveRanks, replica: int, degree: int) -> tuple[int, ...]:
    """Local ranks of `replica` that compute."""
    resting = inactive.by_replica.get(replica, ())
    return tuple(rank for rank in range(degree) if rank not in resting)


@dataclass(frozen=True, kw_only=True)
class ProcessGroups:
    """Global ranks of each tensor-parallel and data-parallel group."""

    tensor: tuple[tuple[int, ...], ...]
    data: tuple[tuple[int, ...], ...]


def process_groups(degrees: Sequence[int]) -> ProcessGroups:
    """Groups of replicas that have `degrees[i]` ranks each, numbered without gaps.

    The first ranks of each replica sum their gradients with one another, as many as the smallest replica
    has. A rank beyond them is alone in its data-parallel group.

    >>> process_groups([2, 4]).data
    ((0, 2), (1, 3), (4,), (5,))
    """
    if not degrees or min(degrees) < 1:
        raise UsageError(f"degrees {list(degrees)}: allowed: one or more, each 1 or more")
    first = [sum(degrees[:replica]) for replica in range(len(degrees))]
    shared = min(degrees)
    tensor = tuple(tuple(range(start, start + degree)) for start, degree in zip(first, degrees, strict=True))
    summed = tuple(tuple(start + rank for start in first) for rank in range(shared))
    alone = tuple((rank,) for group in tensor for rank in group[shared:])
    return ProcessGroups(tensor=tensor, data=summed + alone)


@dataclass(frozen=True, kw_only=True)
class PackedReplica:
    """The scale-up domains of one replica, and the tensor-parallel degree that all its stages have."""

    domains: tuple[int, ...]
    degree: int


def pack_domains(
    failed: Sequence[int], domains_per_replica: int, degree: int
) -> tuple[tuple[PackedReplica, ...], tuple[int, ...]]:
    """Put degraded domains into the fewest replicas, the most degraded into the lowest.

    `failed[i]` counts the failed devices of domain i, out of `degree`. Domains with as many failures share a
    replica, because the worst of them sets its degree. Returns the replicas, and the domains that are left
    where they do not divide, the most degraded of all. Raises `UsageError`.

    >>> replicas, idle = pack_domains([0, 1, 0, 3, 0, 0], 2, 8)
    >>> [(replica.domains, replica.degree) for replica in replicas], idle
    ([((3, 1), 5), ((0, 2), 8), ((4, 5), 8)], ())
    """
    if domains_per_replica < 1 or any(not 0 <= count <= degree for count in failed):
        raise UsageError("domains: allowed: 1 or more to a replica, failures from 0 to the degree")
    order = sorted(range(len(failed)), key=lambda domain: (-failed[domain], domain))
    idle = len(order) % domains_per_replica
    starts = range(idle, len(order), domains_per_replica)
    replicas = tuple(
        PackedReplica(domains=tuple(order[at : at + domains_per_replica]), degree=degree - failed[order[at]])
        for at in starts
    )
    return replicas, tuple(order[:idle])
