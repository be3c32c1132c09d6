"""How large a model is: the numbers of each parameter that one rank computes with."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch

SPLIT_COMPUTE = ("tp", "ep")
"""Mesh dimensions along which ranks share the work on a parameter, and not only its storage."""


def parameters(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, int]:
    """Return, by id, how many numbers of each trained parameter this rank computes with.

    A parameter that is sharded for storage counts as a whole. One of tensor parallelism counts its shard.
    """
    return {
        id(parameter): numbers(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def say_sizes(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Return whether these train DTensors, which say how large they are as a whole."""
    return any(
        hasattr(parameter, "device_mesh")
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def numbers(parameter: torch.Tensor) -> int:
    """Return how many numbers of a parameter this rank computes with."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return _whole(parameter)
    total = parameter.numel()
    placements = getattr(parameter, "placements", ())
    for dimension, (name, placement) in enumerate(zip(mesh.mesh_dim_names or (), placements, strict=False)):
        if name in SPLIT_COMPUTE and placement.is_shard():
            total //= mesh.size(dimension)
    return total


def _whole(parameter: torch.Tensor) -> int:
    """Return the size of a plain tensor, before FSDP1 or ZeRO-3 has left a shard of it."""
    size = getattr(parameter, "ds_numel", None)  # DeepSpeed's
    flat = getattr(parameter, "_unpadded_unsharded_size", None)  # of FSDP1's flat parameter
    if isinstance(flat, torch.Size):
        size = prod(flat)
    return size if isinstance(size, int) and size > 0 else parameter.numel()
