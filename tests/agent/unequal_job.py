"""A tensor-parallel job in float64 that goes on where a replica has lost ranks, and what it must end with."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import pulsetrain
from pulsetrain.elastic.gradient_sync import GradientSync, ParameterLayout
from pulsetrain.elastic.split_state import split_state
from pulsetrain.elastic.unequal_replicas import UnequalReplicas
from tests.elastic.unequal_job import SAMPLES, SPLIT, batch, loss, rows_of, whole_model

DEGREE = 4


def optimizer_of(weights: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights.values(), lr=0.02, momentum=0.6)


def share_of(replicas: UnequalReplicas, name: str, tensor: torch.Tensor) -> ParameterLayout:
    """What this rank has of a parameter."""
    if name not in SPLIT:
        return ParameterLayout(parameter=nn.Parameter(tensor.clone()))
    axis, units, size = SPLIT[name]
    rows = torch.tensor(rows_of(replicas.held(units), size), dtype=torch.long)
    part = nn.Parameter(tensor.index_select(axis, rows))
    return ParameterLayout(parameter=part, mapping=replicas.mapping(units), dim=axis, unit_size=size)


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    watch = pulsetrain.init()
    replicas = UnequalReplicas.of_environment(DEGREE)
    groups = replicas.groups()
    layouts = {name: share_of(replicas, name, tensor) for name, tensor in whole_model().items()}
    weights = {name: layout.parameter for name, layout in layouts.items()}
    optimizer = optimizer_of(weights)
    sync = GradientSync(list(layouts.values()), groups)
    checkpointer = pulsetrain.Checkpointer(split_state(layouts, optimizer, replicas.local_rank))
    restored = checkpointer.restore()
    first = 0 if restored is None else restored + 1
    degrees = ",".join(map(str, replicas.degrees))
    with (args.out / f"rank-{replicas.rank}.log").open("a") as log:
        log.write(f"{os.environ['PULSETRAIN_ATTEMPT']} {os.getpid()} {first} {degrees} {time.time()}\n")
    mine = replicas.samples(SAMPLES)
    for step in range(first, args.steps):
        inputs, targets = (part[mine.start : mine.stop] for part in batch(step))
        with watch.phase("forward"):
            loss(weights, inputs, targets, groups.tensor).backward()
        sync.finish()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.pause)
        watch.step()
        checkpointer.save(step)
    saved = {name: weight.detach().numpy() for name, weight in weights.items()}
    np.savez(args.out / f"{replicas.rank}.npz", **saved)
    dist.barrier()
    dist.destroy_process_group()


def reference(steps: int) -> dict[str, np.ndarray]:
    """The parameters after the same training in one process, with nothing split."""
    weights = {name: nn.Parameter(tensor) for name, tensor in whole_model().items()}
    optimizer = optimizer_of(weights)
    for step in range(steps):
        loss(weights, *batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: weight.detach().numpy() for name, weight in weights.items()}


def replica_of(out: Path, degrees: tuple[int, ...], number: int) -> dict[str, np.ndarray]:
    """The parameters that the ranks of a replica ended with, put together."""
    first = sum(degrees[:number])
    ranks = [UnequalReplicas(degrees=degrees, rank=first + local) for local in range(degrees[number])]
    files = [np.load(out / f"{rank.rank}.npz") for rank in ranks]
    found = {}
    for name in files[0]:
        if name not in SPLIT:
            assert all(np.array_equal(file[name], files[0][name]) for file in files)
            found[name] = files[0][name]
            continue
        axis, units, size = SPLIT[name]
        order = [row for rank in ranks for row in rows_of(rank.held(units), size)]
        stacked = np.concatenate([file[name] for file in files], axis=axis)
        found[name] = np.take(stacked, np.argsort(order), axis=axis)
    return found


@pulsetrain.restartable
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


if __name__ == "__main__":
    main()
