"""A small data-parallel job that goes on with fewer nodes, or with more: start it with --nnodes MIN:MAX.

Each sample of an epoch is used once, and the global batch stays the same, however many ranks there are. All
ranks have the same state, so that any rank's copy is enough for all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import pulsetrain
from pulsetrain.elastic import ElasticSampler, Share

FEATURES = 32


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4096, help="size of the data set")
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, over all ranks")
    parser.add_argument("--microbatch", type=int, default=16, help="samples that a rank takes at once")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters, data and their order")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="sleep so long in each step")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write the samples of each step here")
    return parser.parse_args()


def data(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a linear problem with noise."""
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, FEATURES, generator=source)
    truth = torch.randn(FEATURES, 1, generator=source)
    return inputs, inputs @ truth + 0.1 * torch.randn(samples, 1, generator=source)


def gradients(model: nn.Module, share: Share, inputs: Tensor, targets: Tensor) -> float:
    """Accumulate the gradient of this rank's share, add those of all ranks. Returns the loss of the batch."""
    total = torch.zeros(())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for micro in share.microbatches:
        chosen = torch.tensor(micro)
        loss = (model(inputs[chosen]) - targets[chosen]).square().sum() / share.total
        loss.backward()
        total += loss.detach()
    for tensor in (*(p.grad for p in model.parameters()), total):
        dist.all_reduce(tensor)
    return float(total)


class Record:
    """Which samples this rank used in which step. One file for each attempt and rank."""

    def __init__(self, folder: Path | None) -> None:
        attempt, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("RANK", "0")
        self._file = folder / f"attempt-{attempt}-rank-{rank}.jsonl" if folder else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def note(self, step: int, epoch: int, share: Share) -> None:
        """Write it before the step is done, so that no step can be done without."""
        if self._file is not None:
            ids = [index for micro in share.microbatches for index in micro]
            line = {"step": step, "epoch": epoch, "world": dist.get_world_size(), "ids": ids}
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")


def train(args: argparse.Namespace) -> None:
    """Set up, restore, train, and say what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    watch, record = pulsetrain.init(), Record(args.record)
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sampler = ElasticSampler(args.samples, batch=args.batch, microbatch=args.microbatch, seed=args.seed)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler}
    checkpointer = pulsetrain.Checkpointer(state, replicated=True)
    restored = checkpointer.restore()
    inputs, targets = data(args.samples, args.seed)
    step = 0 if restored is None else restored + 1
    while sampler.epoch < args.epochs:
        for share in sampler:
            with watch.phase("forward"):
                record.note(step, sampler.epoch, share)
                loss = gradients(model, share, inputs, targets)
                time.sleep(args.pause)
            with watch.phase("optimizer"):
                optimizer.step()
            sampler.advance(share)
            watch.log(loss=loss)
            watch.step()
            checkpointer.save(step)
            step += 1
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} loss {loss:.4f} weights {digest}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


@pulsetrain.restartable
def main() -> None:
    """Called again in the same process after a fault elsewhere, perhaps in a world of another size."""
    train(arguments())


if __name__ == "__main__":
    main()
