"""The part of a tensor that this rank holds, and its position: of DTensors, and of tensors split by units."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from pulsetrain.core.errors import CheckpointError
from pulsetrain.elastic.split_state import box_of


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of the tensor that this rank holds, sharing its memory."""
    if not isinstance(tensor, DTensor):
        return tensor
    part = tensor._local_tensor
    return part if type(part) is torch.Tensor else tensor.to_local()


def position(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a shard begins, and the global shape. Both are empty for a tensor that is whole."""
    if not isinstance(tensor, DTensor):
        return box_of(tensor)
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != tuple(local(tensor).shape):
        raise CheckpointError(
            f"shard of shape {tuple(local(tensor).shape)} where {tuple(shape)} was expected"
        )
    return tuple(start), tuple(tensor.shape)


def sharded_like(parameter: DTensor, part: torch.Tensor) -> DTensor:
    """A DTensor with the global shape and placement of `parameter`, over this rank's `part`."""
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
