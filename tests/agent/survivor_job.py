"""A data-parallel job whose ranks can go on in their processes, and what it must end with.

Gradients are added in float64, so that their sum does not depend on the order of the ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import pulsetrain

BATCH = 24


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true", help="without pulsetrain.restartable")
    parser.add_argument("--at", type=int, default=-1, help="the step at which something happens once")
    parser.add_argument("--sleeps", type=int, default=-1, help="the rank that sleeps for long then")
    parser.add_argument("--raises", type=int, default=-1, help="the rank that raises then")
    return parser.parse_args()


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def gradients(model: nn.Module, step: int, rank: int, world: int) -> list[Tensor]:
    """Those of this rank's part of the batch, in float64."""
    inputs = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))[rank::world]
    torch.manual_seed(step * 100 + rank)
    loss = model(inputs).square().sum() / BATCH
    return [gradient.double() for gradient in torch.autograd.grad(loss, list(model.parameters()))]


def apply(model: nn.Module, optimizer: torch.optim.Optimizer, sums: list[Tensor]) -> None:
    for parameter, total in zip(model.parameters(), sums, strict=True):
        parameter.grad = total.float()
    optimizer.step()


def digest_of(model: nn.Module) -> str:
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def reference(steps: int, world_of: Callable[[int], int]) -> str:
    """What the job ends with if step `s` is done by `world_of(s)` ranks, computed in one process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, optimizer = build()
    for step in range(steps):
        world = world_of(step)
        parts = [gradients(model, step, rank, world) for rank in range(world)]
        apply(model, optimizer, [torch.stack(of).sum(0) for of in zip(*parts, strict=True)])
    torch.set_num_threads(threads)
    return digest_of(model)


def misbehave(args: argparse.Namespace, rank: int) -> None:
    """Do once what the arguments ask for."""
    done = args.out / f"misbehaved-{rank}"
    if rank not in (args.sleeps, args.raises) or done.exists():
        return
    done.touch()
    if rank == args.sleeps:
        time.sleep(600)
    else:
        raise ValueError("loss is not finite")


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    watch = pulsetrain.init()
    model, optimizer = build()
    checkpointer = pulsetrain.Checkpointer({"model": model, "optimizer": optimizer}, replicated=True)
    restored = checkpointer.restore()
    first = 0 if restored is None else restored + 1
    with (args.out / f"rank-{rank}.log").open("a") as log:
        log.write(f"{os.environ['PULSETRAIN_ATTEMPT']} {os.getpid()} {first} {world} {time.time()}\n")
    for step in range(first, args.steps):
        with watch.phase("forward"):
            sums = gradients(model, step, rank, world)
        if step == args.at:
            misbehave(args, rank)
        for tensor in sums:
            dist.all_reduce(tensor)
        apply(model, optimizer, sums)
        time.sleep(args.pause)
        watch.step()
        checkpointer.save(step)
    print(f"weights {rank} {digest_of(model)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    (train if options.plain else pulsetrain.restartable(train))(options)
