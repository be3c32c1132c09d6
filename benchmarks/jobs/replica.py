"""A data-parallel job of small steps, whose processes outlive another replica. It writes down each step.

With `--peer` the same model runs under torchft (0.2), one replica in each process. Then nothing of Pulsetrain
is imported, so that it runs in any Python in which torchft is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, BATCH = 256, 64


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, required=True, metavar="DIR", help="a file for each process")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pause", type=float, default=0.03, metavar="S", help="sleep so long in each step")
    parser.add_argument("--peer", default="", metavar="ADDRESS", help="of torchft's lighthouse")
    parser.add_argument("--replica", type=int, default=0, help="number of this replica under torchft")
    return parser.parse_args()


def build() -> nn.Module:
    """The same model in every process."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def batch(step: int, rank: int) -> Tensor:
    """What a rank trains on in a step."""
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))


def recorder(folder: Path) -> Callable[[int, int], None]:
    """Return what writes down a step that this process has completed, and in a world of how many."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def note(step: int, world: int) -> None:
        file.write(json.dumps({"step": step, "world": world, "at_s": time.monotonic()}) + "\n")

    return note


def watched(args: argparse.Namespace) -> None:
    """Train under Pulsetrain. Called again in the same process when another replica was lost."""
    import pulsetrain

    @pulsetrain.restartable
    def train() -> None:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        checkpointer = pulsetrain.Checkpointer({"model": model, "optimizer": optimizer}, replicated=True)
        done = checkpointer.restore()
        parallel = nn.parallel.DistributedDataParallel(model)
        for step in range(0 if done is None else done + 1, args.steps):
            optimizer.zero_grad()
            parallel(batch(step, rank)).square().mean().backward()
            time.sleep(args.pause)
            optimizer.step()
            checkpointer.save(step)
            note(step, world)

    note = recorder(args.record)
    train()


def peer(args: argparse.Namespace) -> None:
    """Train under torchft. Its DistributedDataParallel ends with an assertion here when a replica is lost."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    model = build()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=args.peer,
        replica_id=f"replica-{args.replica}-",
        hostname="127.0.0.1",
    )
    optimizer = Optimizer(manager, inner)
    note = recorder(args.record)
    while manager.current_step() < args.steps:
        step = manager.current_step()
        optimizer.zero_grad()
        model(batch(step, args.replica)).square().mean().backward()
        sums = [manager.allreduce(p.grad) for p in model.parameters() if p.grad is not None]
        for work in sums:
            work.wait()
        time.sleep(args.pause)
        optimizer.step()
        if manager.current_step() > step:
            note(step, manager.num_participants())


if __name__ == "__main__":
    torch.set_num_threads(1)
    args = arguments()
    peer(args) if args.peer else watched(args)
