"""What an optimizer says of itself: how many updates it has made, and how large its model is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from pulsetrain.collectors.rank.numbers import Number, number

SPLIT_COMPUTE = ("tp", "ep")
"""Mesh dimensions along which ranks share the work on a parameter, and not only its storage."""
SEARCH = 256  # parameters that are asked for the count; the first ones may be frozen


def count(optimizer: torch.optim.Optimizer) -> Number | None:
    """Return how many updates it has made, from its own state. None where it does not count.

    A count on a CUDA device is copied behind the work that makes it. One that would have to be waited for is
    not read.
    """
    asked = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if isinstance(state, Mapping) and "step" in state:
                return _number(state["step"])
            asked += 1
            if asked >= SEARCH:
                return None
    return None


def _number(value: object) -> Number | None:
    try:
        return number(value)
    except (TypeError, ValueError):
        return None


def parameters(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, int]:
    """Return, by id, how many numbers of each trained parameter this rank computes with.

    A parameter that is sharded for storage counts as a whole. One of tensor parallelism counts its shard.
    """
    return {
        id(parameter): _numbers(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _numbers(parameter: torch.Tensor) -> int:
    total = parameter.numel()
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return total
    placements = getattr(parameter, "placements", ())
    for dimension, (name, placement) in enumerate(zip(mesh.mesh_dim_names or (), placements, strict=False)):
        if name in SPLIT_COMPUTE and placement.is_shard():
            total //= mesh.size(dimension)
    return total
