"""The GPT of train_gpt.py as a job that goes on with fewer replicas, or with more.

    pulsetrain run --nnodes 2:4 --node-unit 2 --nproc-per-node 2 examples/train_gpt_elastic.py --tp 2 --pp 2

Tensor and pipeline parallelism stay, the number of data-parallel replicas follows from the number of ranks.
The global batch stays the same: fewer replicas do more microbatches each. Every sample of an epoch is used
once.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from train_gpt import Trainer, misfit, parameters_hash, set_up

import pulsetrain
from pulsetrain.elastic import ElasticSampler, Share


def arguments() -> argparse.Namespace:
    """The command line, with the sizes that follow from the number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks")
    parser.add_argument("--pp", type=int, default=2, help="pipeline stages")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4096, help="sequences in the data set")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step, over all replicas")
    parser.add_argument("--rows", type=int, default=4, help="sequences in a microbatch")
    parser.add_argument("--seq", type=int, default=32, help="bytes in a sequence")
    parser.add_argument("--layers", type=int, default=2, help="transformer blocks")
    parser.add_argument("--dim", type=int, default=32, help="width of the model")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and data order")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="sleep so long in each step")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write samples and loss of each step here")
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    args.dp = max(1, world_size // (args.tp * args.pp))
    args.microbatches = args.batch // args.dp // args.rows
    args.steps = args.epochs * args.samples // args.batch
    problem = misfit(args, world_size)
    if args.samples % args.batch:
        problem = f"--samples {args.samples}: must be a multiple of --batch {args.batch}"
    if problem:
        parser.error(problem)
    return args


def sequences(text: Tensor, share: Share, seq: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a share. Sample i begins where an odd multiple of i falls in the text."""
    ids = torch.tensor([index for micro in share.microbatches for index in micro])
    starts = (ids * 7919) % (len(text) - seq - 1)
    window = text[starts[:, None] + torch.arange(seq + 1)].long()
    return window[:, :-1], window[:, 1:]


class Record:
    """Samples and loss of each step of this rank. One file for each attempt and rank."""

    def __init__(self, folder: Path | None) -> None:
        attempt, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("RANK", "0")
        self._file = folder / f"attempt-{attempt}-rank-{rank}.jsonl" if folder else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def note(self, **values: object) -> None:
        """Write a line at once, so that it is there whatever happens next."""
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(values) + "\n")


def train(args: argparse.Namespace) -> None:
    """Set up, restore, train, and say what came out."""
    device = set_up(args)
    mesh = init_device_mesh(device.type, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    trainer, record = Trainer(args, mesh, device), Record(args.record)
    sampler = ElasticSampler(
        args.samples, batch=args.batch, seed=args.seed, rank=trainer.replica, world=args.dp
    )
    watch = pulsetrain.init(mesh=mesh)
    checkpointer = pulsetrain.Checkpointer({**trainer.state, "sampler": sampler})
    restored = checkpointer.restore()
    counts = mesh["tp"].get_local_rank() == mesh["pp"].get_local_rank() == 0
    step = 0 if restored is None else restored + 1
    while sampler.epoch < args.epochs:
        for share in sampler:
            with watch.phase("data"):
                inputs, targets = (t.to(device) for t in sequences(trainer.text, share, args.seq))
            ids = [index for micro in share.microbatches for index in micro] if counts else []
            where = {"step": step, "epoch": sampler.epoch, "world": dist.get_world_size()}
            record.note(**where, ids=ids)  # before others can use its gradient
            loss = trainer.forward_backward(inputs, targets)
            trainer.average_gradients()
            record.note(**where, ids=[], loss=loss)
            with watch.phase("optimizer"):
                norm = trainer.update(step)
            sampler.advance(share)
            watch.log(loss=loss, grad_norm=norm)
            watch.step(tokens=inputs.numel())
            checkpointer.save(step)
            time.sleep(args.pause)
            step += 1
    digest = parameters_hash(trainer.model)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} parameters {digest}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


@pulsetrain.restartable
def main() -> None:
    """Called again in the same process after a fault elsewhere, perhaps in a world of another size."""
    train(arguments())


if __name__ == "__main__":
    main()
