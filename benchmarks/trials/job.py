"""One rank of the campaign's job: a training-like script of DP 2 x PP 2 x TP 2 ranks.

    job.py STEPS MODE FOLDER

Every step loads data, and runs two microbatches forward and backward through two pipeline stages, with a
tensor-parallel all-reduce in each. It reduces the gradient over replicas, and every few steps the loss over
all ranks. Then it takes an optimizer step on a small vector.

The time of computing is set. In mode ``device`` the process waits, as a host waits for its accelerator. In
mode ``host`` it multiplies matrices. Everything else takes the time that it takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pulsetrain
from pulsetrain.faults.inside import Injector
from pulsetrain.faults.plan import ENVIRONMENT, load

TP, PP, DP = 2, 2, 2
MICROBATCHES = 2
FORWARD_S, BACKWARD_S, OPTIMIZER_S, DATA_S = 0.002, 0.004, 0.002, 0.001
SAVE_EVERY, REDUCE_EVERY = 25, 5
PLAN = "plan.json"
SHARD = torch.zeros(8192)
MATRIX = torch.full((96, 96), 0.01)
PRODUCTS_A_SECOND = 12_000  # of MATRIX with itself on one undisturbed core, about


def coordinates(rank: int) -> tuple[int, int, int]:
    """(dp, pp, tp) of a rank: a node of two ranks holds one tensor-parallel pair."""
    return rank // (TP * PP), rank // TP % PP, rank % TP


def members(axis: str, rank: int) -> tuple[int, ...]:
    """Ranks of the group of `axis` that `rank` is in."""
    index = ("dp", "pp", "tp").index(axis)
    mine = coordinates(rank)
    keep = [i for i in range(3) if i != index]
    return tuple(r for r in range(TP * PP * DP) if all(coordinates(r)[i] == mine[i] for i in keep))


def group_label(axis: str, rank: int) -> str:
    """What the group of `axis` that `rank` is in is described as."""
    return f"{axis}-{members(axis, rank)[0]}"


def groups(rank: int) -> dict[str, Any]:
    """This rank's process group of each axis; every rank makes all of them, as torch wants it."""
    mine: dict[str, Any] = {}
    for axis in ("tp", "pp", "dp"):
        for first in sorted({members(axis, r) for r in range(TP * PP * DP)}):
            group = dist.new_group(list(first), group_desc=group_label(axis, first[0]))
            if rank in first:
                mine[axis] = group
    return mine


def worker(mode: str, faults: Injector) -> Callable[[int, float], None]:
    """work(step, seconds): what takes an undisturbed rank so long."""

    def wait(step: int, seconds: float) -> None:
        time.sleep(seconds * faults.stretch(step))

    def multiply(step: int, seconds: float) -> None:
        for _ in range(round(seconds * faults.stretch(step) * PRODUCTS_A_SECOND)):
            torch.mm(MATRIX, MATRIX)

    return wait if mode == "device" else multiply


class Tokens(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """An endless data set of small batches."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(64)


def loader(rank: int) -> Iterator[torch.Tensor] | None:
    """A real data loader with a worker process where the plan is going to strike that."""
    wanted = any(f.rank == rank and f.kind in ("kill_child", "stop_child") for f in load())
    if not wanted:
        return None
    return iter(torch.utils.data.DataLoader(Tokens(), batch_size=1, num_workers=1))


class Trainer:
    """The state of one rank and the parts of its step."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.rank = dist.get_rank()
        self.dp, self.pp, self.tp = coordinates(self.rank)
        self.groups = groups(self.rank)
        self.watch = pulsetrain.init(dp=self.dp, pp=self.pp, tp=self.tp)
        self.faults = Injector.from_environ()
        self.work = worker(mode, self.faults)
        self.batches = loader(self.rank)
        self.file = folder / f"state_{self.rank}.pt"
        self.weights = torch.full((4096,), 8.0)
        self.draw = torch.Generator().manual_seed(self.rank)

    def transfer(self, *, receive: bool) -> None:
        """One activation or gradient between the two stages of this replica."""
        peer = next(r for r in members("pp", self.rank) if r != self.rank)
        (dist.recv if receive else dist.send)(SHARD, peer, group=self.groups["pp"])

    def microbatches(self, step: int, phase: str) -> None:
        """All forwards or all backwards, GPipe's order."""
        forward = phase == "forward"
        feeds = (self.pp == 0) == forward
        for _ in range(MICROBATCHES):
            if not feeds:
                self.transfer(receive=True)
            with self.watch.phase(phase):
                self.faults.at(step, phase)
                self.work(step, FORWARD_S if forward else BACKWARD_S)
                dist.all_reduce(SHARD, group=self.groups["tp"])
            if feeds:
                self.transfer(receive=False)

    def learn(self, step: int) -> None:
        """The optimizer step on noisy gradients, clipped; logs the loss and this rank's own gradient norm."""
        loss = 0.5 * float(self.weights.square().mean())
        gradient = self.weights + 0.3 * torch.randn(4096, generator=self.draw)
        gradient = self.faults.value(step, gradient, "gradient")
        norm = float(gradient.norm())
        gradient.nan_to_num_(0.0).clamp_(-10, 10)
        dist.all_reduce(gradient, group=self.groups["dp"])
        if step % REDUCE_EVERY == 0:
            total = torch.tensor([loss])
            self.faults.at(step, "reduce")
            dist.all_reduce(total)
            loss = float(total) / dist.get_world_size()
        with self.watch.phase("optimizer"):
            self.faults.at(step, "optimizer")
            self.weights -= 0.001 * gradient
            self.work(step, OPTIMIZER_S)
        loss = self.faults.value(step, loss, "loss")
        self.watch.log(loss=loss, grad_norm=norm)

    def save(self, step: int) -> None:
        """A checkpoint of this rank every `SAVE_EVERY` steps."""
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            with self.watch.phase("checkpoint"):
                self.faults.at(step, "checkpoint")
                self.file.write_bytes(self.weights.numpy().tobytes() * 4)

    def step(self, step: int) -> None:
        """One whole step."""
        with self.watch.phase("data"):
            self.faults.at(step, "data")
            time.sleep(DATA_S)
            if self.batches is not None:
                next(self.batches)
        self.microbatches(step, "forward")
        self.microbatches(step, "backward")
        self.learn(step)
        self.save(step)
        self.watch.step(tokens=4096, flops=1e9)


def main() -> None:
    """Run the steps; the plan of faults lies in the folder."""
    torch.set_num_threads(1)
    steps, mode, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    os.environ[ENVIRONMENT] = (folder / PLAN).read_text()
    dist.init_process_group("gloo")
    trainer = Trainer(mode, folder)
    for step in range(steps):
        trainer.step(step)
    trainer.batches = None
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # nothing to tear down: the next session waits for the processors


if __name__ == "__main__":
    main()
