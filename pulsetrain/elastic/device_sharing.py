"""Which ranks of a node share a device, where there are fewer devices than ranks. Pure.

Only data-parallel replicas of the same shard share one, as in Singularity (arXiv 2202.07848, section 5.3):
they hold the same state, and none of them waits for another one in the middle of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pulsetrain.core.errors import UsageError

Coordinates = Mapping[str, int]
SHARD_AXES = ("tp", "pp", "cp", "ep")


def place(ranks: Sequence[int], devices: int, coordinates: Mapping[int, Coordinates]) -> dict[int, int]:
    """The device of each rank, from 0. Loads differ as little as whole replicas allow.

    `coordinates` by rank. Where those of one are missing, all ranks count as replicas. Raises `UsageError`
    where the devices are too few.

    >>> place(range(4), 2, {})
    {0: 0, 1: 0, 2: 1, 3: 1}
    >>> mesh = {rank: {"tp": rank % 2, "dp": rank // 2} for rank in range(4)}
    >>> place(range(4), 2, mesh)
    {0: 0, 2: 0, 1: 1, 3: 1}
    """
    shards = _shards(ranks, coordinates)
    if devices < max(1, len(shards)):
        raise UsageError(_too_few(len(ranks), len(shards), devices))
    placed: dict[int, int] = {}
    first = 0
    for replicas, own in zip(shards, _shares([len(s) for s in shards], devices), strict=True):
        for position, rank in enumerate(replicas):
            placed[rank] = first + position * own // len(replicas)
        first += own
    return placed


def least_devices(ranks: Sequence[int], coordinates: Mapping[int, Coordinates]) -> int:
    """The fewest devices on which these ranks can run: one for each shard.

    >>> least_devices(range(8), {rank: {"tp": rank % 2, "pp": rank // 4} for rank in range(8)})
    4
    """
    return len(_shards(ranks, coordinates))


def devices_of_nodes(devices: int, nodes: int) -> list[int]:
    """How many of a job's devices each of its nodes gets. The first ones get one more where it must be.

    >>> devices_of_nodes(7, 3)
    [3, 2, 2]
    """
    return [devices // nodes + (node < devices % nodes) for node in range(nodes)]


def _shards(ranks: Sequence[int], coordinates: Mapping[int, Coordinates]) -> list[list[int]]:
    """The replicas of each shard, in order of their data-parallel coordinates."""
    if any(rank not in coordinates for rank in ranks):
        return [list(ranks)]
    shards: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(ranks, key=lambda rank: (coordinates[rank].get("dp", 0), rank)):
        shards[tuple(coordinates[rank].get(axis, 0) for axis in SHARD_AXES)].append(rank)
    return [shards[key] for key in sorted(shards)]


def _shares(sizes: Sequence[int], devices: int) -> list[int]:
    """How many devices each shard gets: one, and each further one where most ranks share one."""
    shares = [1] * len(sizes)
    for _ in range(devices - len(sizes)):
        fullest = max(range(len(sizes)), key=lambda i: (sizes[i] / shares[i], -i))
        if shares[fullest] < sizes[fullest]:
            shares[fullest] += 1
    return shares


def _too_few(ranks: int, shards: int, devices: int) -> str:
    if shards <= 1:
        return f"devices = {devices}: allowed: 1 to {ranks} on a node of {ranks} ranks"
    return (
        f"devices = {devices}: {ranks} ranks of a node hold {shards} different shards, "
        f"and only replicas of one shard share a device: allowed: {shards} to {ranks}"
    )
