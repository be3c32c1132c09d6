"""A data-parallel job with a small batch and many parameters. It notes when each step and update ended."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pulsetrain

OPTIMIZERS = ("muon", "adamw", "fused")


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """One of `OPTIMIZERS`: Muon, AdamW as torch chooses it, or AdamW in one pass."""
    if name == "muon":
        return torch.optim.Muon(parameters, lr=1e-3)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=name == "fused")


def digest(optimizer: torch.optim.Optimizer) -> str:
    """A digest of all parameters and of the optimizer's state."""
    found = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.update(parameter.detach().numpy().tobytes())
            for key, value in sorted(optimizer.state[parameter].items()):
                found.update(key.encode())
                found.update(value.numpy().tobytes() if value is not None else b"")
    return found.hexdigest()


def main() -> None:
    """Train, then write the times and the digest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--corrupt", default="", metavar="RANK:STEP:WHAT", help="parameter or state")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(given.width, given.width, bias=False) for _ in range(given.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
    optimizer = make_optimizer(given.optimizer, model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    pulse = pulsetrain.init()
    ends: list[int] = []
    updates: list[int] = []
    updates_cpu: list[int] = []  # of all threads
    for step in range(given.steps):
        inputs = torch.randn(4, given.width, generator=torch.Generator().manual_seed(step * 1000 + rank))
        model(inputs).square().mean().backward()
        corrupt(given.corrupt, rank, step, optimizer)
        began, began_cpu = time.perf_counter_ns(), time.process_time_ns()
        optimizer.step()
        updates.append(time.perf_counter_ns() - began)
        updates_cpu.append(time.process_time_ns() - began_cpu)
        schedule.step()
        optimizer.zero_grad()
        pulse.step()
        ends.append(time.perf_counter_ns())
        stop = torch.full((1,), float((given.out / "stop").exists()))
        dist.all_reduce(stop)
        if stop.item():
            break
    times = {"ends_ns": ends, "updates_ns": updates, "updates_cpu_ns": updates_cpu}
    result = {"steps": len(ends), **times, "digest": digest(optimizer)}
    partial = given.out / f"rank{rank}.partial"
    partial.write_text(json.dumps(result))
    os.replace(partial, given.out / f"rank{rank}.json")
    dist.destroy_process_group()


def corrupt(asked: str, rank: int, step: int, optimizer: torch.optim.Optimizer) -> None:
    """Change one number of this rank's second parameter, or of its state, where that is asked for."""
    who, _, rest = asked.partition(":")
    when, _, what = rest.partition(":")
    if not asked or (int(who), int(when)) != (rank, step):
        return
    parameter = optimizer.param_groups[0]["params"][1]
    tensor = parameter if what == "parameter" else optimizer.state[parameter]["exp_avg"]
    with torch.no_grad():
        tensor.view(-1)[7] += 1.0


if __name__ == "__main__":
    main()
