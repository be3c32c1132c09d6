"""One rank of a small transformer layer in float64, under tensor parallelism of unequal degrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from pulsetrain.elastic.gradient_sync import GradientSync, ParameterLayout, ReplicaGroups
from pulsetrain.elastic.shard_mapping import shard_mapping
from pulsetrain.elastic.unequal_batch import deal_batch
from pulsetrain.elastic.unequal_groups import process_groups

WIDTH, HEADS, HEAD, HIDDEN, LENGTH, SAMPLES, RATE = 12, 9, 2, 29, 3, 14, 0.05
SPLIT = {"qkv": (1, HEADS, 3 * HEAD), "out": (0, HEADS, HEAD), "up": (1, HIDDEN, 1), "down": (0, HIDDEN, 1)}
"""Axis, units and size of a unit. Neither 9 heads nor 29 columns divide by 2, 4, 6 or 8."""


def whole_model() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    shapes = {"bias": (WIDTH,), "qkv": (WIDTH, HEADS * 3 * HEAD), "out": (HEADS * HEAD, WIDTH)}
    shapes |= {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    return {
        name: 0.3 * torch.randn(shape, generator=random, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 + step)
    shape = (2, SAMPLES, LENGTH, WIDTH)
    inputs, targets = torch.randn(shape, generator=random, dtype=torch.float64)
    return inputs, targets


class _Copy(torch.autograd.Function):
    """Forward: as it is. Backward: summed over the tensor-parallel group."""

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """Forward: summed over the tensor-parallel group. Backward: as it is."""

    @staticmethod
    def forward(ctx, tensor, group):
        tensor = tensor.contiguous().clone()
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def loss(weights, inputs, targets, group=None):
    """Attention and a hidden layer, the squared error summed. `group` is the tensor-parallel one."""
    enter = (lambda x: _Copy.apply(x, group)) if group else (lambda x: x)
    leave = (lambda x: _Sum.apply(x, group)) if group else (lambda x: x)
    heads = (enter(inputs) @ weights["qkv"]).unflatten(-1, (-1, 3, HEAD))
    query, key, value = heads.permute(3, 0, 2, 1, 4)
    seen = torch.softmax(query @ key.transpose(-1, -2) / HEAD**0.5, -1) @ value
    middle = inputs + leave(seen.transpose(1, 2).flatten(-2) @ weights["out"]) + weights["bias"]
    result = middle + leave(torch.tanh(enter(middle) @ weights["up"]) @ weights["down"])
    return ((result - targets) ** 2).sum() / (SAMPLES * LENGTH)


def rows_of(units, size) -> list[int]:
    return [unit * size + row for unit in units for row in range(size)]


def rank_main(rank: int, degrees: tuple[int, ...], steps: int, folder: Path) -> None:
    """Train, and save this rank's parameters and first gradients."""
    torch.set_num_threads(1)
    world = sum(degrees)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    groups = process_groups(degrees)
    made = {members: dist.new_group(list(members)) for members in (*groups.tensor, *groups.data)}
    replica = next(i for i, members in enumerate(groups.tensor) if rank in members)
    mine = groups.tensor[replica]
    partners = next(members for members in groups.data if rank in members)
    local = mine.index(rank)
    weights, layouts = {}, []
    for name, tensor in whole_model().items():
        mapping = None
        axis, units, size = SPLIT.get(name, (0, 0, 1))
        if name in SPLIT:
            mapping = shard_mapping(units, len(mine), min(degrees))
            tensor = tensor.index_select(axis, torch.tensor(rows_of(mapping.compute[local], size)))
        weights[name] = nn.Parameter(tensor.clone())
        layouts.append(ParameterLayout(parameter=weights[name], mapping=mapping, dim=axis, unit_size=size))
    place = ReplicaGroups(
        local_rank=local, first_rank=mine[0], degree=len(mine), tensor=made[mine],
        data=made[partners] if len(partners) > 1 else None,
    )  # fmt: skip
    sync = GradientSync(layouts, place)
    shares = deal_batch(SAMPLES, degrees)
    low = sum(shares[:replica])
    saved = {}
    for step in range(steps):
        inputs, targets = (part[low : low + shares[replica]] for part in batch(step))
        half = len(inputs) // 2
        with sync.no_sync():
            loss(weights, inputs[:half], targets[:half], made[mine]).backward()
        loss(weights, inputs[half:], targets[half:], made[mine]).backward()
        sync.finish()
        for name, weight in weights.items():
            if step == 0:
                saved[f"grad-{name}"] = weight.grad.numpy().copy()
            weight.data -= RATE * weight.grad
            weight.grad = None
    saved |= {name: weight.detach().numpy() for name, weight in weights.items()}
    np.savez(folder / f"{rank}.npz", **saved)
    dist.barrier()
    dist.destroy_process_group()


def uninterrupted(steps: int) -> dict[str, np.ndarray]:
    """The same training in one process, with nothing split."""
    weights = {name: nn.Parameter(tensor) for name, tensor in whole_model().items()}
    found = {}
    for step in range(steps):
        loss(weights, *batch(step)).backward()
        for name, weight in weights.items():
            if step == 0:
                found[f"grad-{name}"] = weight.grad.numpy().copy()
            weight.data -= RATE * weight.grad
            weight.grad = None
    return found | {name: weight.detach().numpy() for name, weight in weights.items()}
