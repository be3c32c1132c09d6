"""Why a job goes on with replicas of unequal size: what that is worth beside leaving a replica out. Pure."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from pulsetrain.elastic.strategies import ReplicaShape, Strategy, fleet_capacity
from pulsetrain.recovery.world_sizes import WorldSizes


class UnequalDetail(TypedDict):
    """How the nodes are dealt over the replicas, and what that is worth in whole replicas.

    `whole_replicas` is what it would be worth without the incomplete ones.
    """

    units: list[int]
    worth_replicas: float
    whole_replicas: float
    why: str


def unequal_detail(sizes: WorldSizes, nodes: int) -> UnequalDetail | None:
    """Why a job goes on with so many nodes. None where all its replicas are whole.

    The worth is that of the fleet model: each replica gets as many samples as it can do in the same time.

    >>> detail = unequal_detail(WorldSizes(least=4, most=8, unit=4, unit_least=3), 7)
    >>> detail["units"], detail["worth_replicas"], detail["whole_replicas"]
    ([4, 3], 1.75, 1.0)
    """
    units = sizes.units(nodes)
    if not sizes.unequal or not units or units[-1] == sizes.unit:
        return None
    shape = ReplicaShape(degree=sizes.unit, domains=1, batch=sizes.unit, smallest_degree=sizes.unit_least)
    failed = np.bincount([sizes.unit - unit for unit in units], minlength=sizes.unit + 1)
    worth = float(fleet_capacity(Strategy.NTP, shape, failed))
    whole = float(nodes // sizes.unit)
    dealt = ", ".join(map(str, units))
    return {
        "units": list(units),
        "worth_replicas": round(worth, 3),
        "whole_replicas": whole,
        "why": f"replicas of {dealt} nodes do the work of {worth:g}, without the incomplete ones {whole:g}",
    }
