"""Train a small GPT with tensor and sequence parallelism on a DeviceMesh, and FSDP over the rest.

    torchrun --nproc-per-node 4 benchmarks/jobs/tensor_parallel.py --tp 2 --steps 50

With `--compile inductor` each block is compiled, with its collectives inside the graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, Corpus, cross_entropy, finish, parser, say
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.profiler import record_function as timed


def arguments() -> Any:
    flags = parser(__doc__)
    flags.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks")
    flags.add_argument("--compile", default="", metavar="BACKEND", help="of torch.compile, for each block")
    return flags.parse_args()


def parallelize(model: GPT, tp: DeviceMesh) -> None:
    """Activations between the parts of a block are sharded over the sequence."""
    outer = {
        "embedding.tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "embedding.positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, tp, outer)
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        plan = {
            "norm1": SequenceParallel(),
            "attention": gathered,
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "norm2": SequenceParallel(),
            "mlp": gathered,
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, tp, plan)


def train_step(model: GPT, optimizer: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    tokens, targets = batch
    with timed("forward"):
        logits, _ = model(tokens)
        loss = cross_entropy(logits, targets)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def after_step() -> None:
    """Called at the end of each step."""


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    dp = dist.get_world_size() // args.tp
    mesh = init_device_mesh("cpu", (dp, args.tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(args.seed)
    corpus, model = Corpus(args.seed), GPT(args.width, args.layers, args.length)
    parallelize(model, mesh["tp"])
    if dp > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    if args.compile:
        for block in model.blocks:
            block.compile(backend=args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    draw = torch.Generator().manual_seed(args.seed * 1000 + mesh.get_local_rank("dp"))
    loss = float("nan")
    for step in range(args.steps):
        with timed("data"):
            batch = corpus.batch(args.batch, args.length, draw)
        loss = train_step(model, optimizer, batch)
        if dist.get_rank() == 0:
            say(step, loss)
        after_step()
    if dist.get_rank() == 0:
        finish(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
