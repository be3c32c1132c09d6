"""A data-parallel job whose device works for a known time in each step. Its end time of each step is kept."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pulsetrain

WIDTH = 64


def work(sleep_s: float, processor_s: float) -> None:
    """What the device does in the forward pass: for the host a wait, or processor time of its own."""
    time.sleep(sleep_s)
    end = time.thread_time() + processor_s
    while time.thread_time() < end:
        pass


def main() -> None:
    """Train, then write step ends and a digest of the parameters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sleep", type=float, default=0.0, metavar="S")
    parser.add_argument("--processor", type=float, default=0.0, metavar="S")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pulse = pulsetrain.init()
    ends: list[int] = []
    for step in range(given.steps):
        source = torch.Generator().manual_seed(step * 1000 + rank)
        inputs = torch.randn(16, WIDTH, generator=source)
        loss = model(inputs).square().mean()
        work(given.sleep, given.processor)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        pulse.step()
        ends.append(time.perf_counter_ns())
        stop = torch.full((1,), float((given.out / "stop").exists()))
        dist.all_reduce(stop)
        if stop.item():
            break
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    result = {"steps": len(ends), "ends_ns": ends, "digest": digest.hexdigest()}
    partial = given.out / f"rank{rank}.partial"
    partial.write_text(json.dumps(result))
    os.replace(partial, given.out / f"rank{rank}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
