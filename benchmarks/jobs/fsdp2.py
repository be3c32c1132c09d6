"""Train a small GPT whose parameters are sharded by `fully_shard`.

torchrun --nproc-per-node 2 benchmarks/jobs/fsdp2.py --steps 50
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import GPT, Corpus, finish, parser, say
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import record_function as timed


def arguments() -> Any:
    flags = parser(__doc__)
    flags.add_argument("--save-every", type=int, default=0, help="0: never")
    flags.add_argument("--out", type=Path, default=None, help="folder of the checkpoints")
    return flags.parse_args()


def sharded(args: Any) -> GPT:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = GPT(args.width, args.layers, args.length)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train_step(model: GPT, optimizer: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    with timed("forward"):
        _, loss = model(*batch)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def after_step() -> None:
    """Called at the end of each step."""


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    corpus, model = Corpus(args.seed), sharded(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=True)
    draw = torch.Generator().manual_seed(args.seed * 1000 + dist.get_rank())
    loss = float("nan")
    for step in range(args.steps):
        with timed("data"):
            batch = corpus.batch(args.batch, args.length, draw)
        loss = train_step(model, optimizer, batch)
        if dist.get_rank() == 0:
            say(step, loss)
        after_step()
        if args.out and args.save_every and (step + 1) % args.save_every == 0:
            dcp.save({"model": model.state_dict()}, checkpoint_id=args.out / f"step-{step}")
    if dist.get_rank() == 0:
        finish(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
