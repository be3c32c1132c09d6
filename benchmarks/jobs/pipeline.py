"""Train a small GPT that is cut into pipeline stages, under a schedule of torch.distributed.pipelining.

    torchrun --nproc-per-node 2 benchmarks/jobs/pipeline.py --schedule 1f1b --steps 50

The last rank knows the loss and prints it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from gpt import VOCABULARY, Block, Corpus, Embedding, cross_entropy, finish, parser, say
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.profiler import record_function as timed


def arguments() -> Any:
    flags = parser(__doc__, layers=4)
    flags.add_argument("--schedule", choices=("1f1b", "gpipe", "interleaved"), default="1f1b")
    flags.add_argument("--microbatches", type=int, default=4)
    return flags.parse_args()


def stages(args: Any) -> list[PipelineStage]:
    """This rank's stages: one, or two under the interleaved schedule."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    count = ranks * (2 if args.schedule == "interleaved" else 1)
    parts: list[list[nn.Module]] = [[] for _ in range(count)]
    parts[0].append(Embedding(args.width, args.length))
    for layer in range(args.layers):
        parts[layer * count // args.layers].append(Block(args.width, args.width // 4))
    parts[-1] += [nn.LayerNorm(args.width), nn.Linear(args.width, VOCABULARY)]
    cpu = torch.device("cpu")
    mine = range(me, count, ranks)
    return [PipelineStage(nn.Sequential(*parts[i]), i, count, cpu) for i in mine]


def schedule_of(args: Any, mine: list[PipelineStage]) -> Any:
    if args.schedule == "interleaved":
        return ScheduleInterleaved1F1B(mine, args.microbatches, loss_fn=cross_entropy)
    kind = Schedule1F1B if args.schedule == "1f1b" else ScheduleGPipe
    return kind(mine[0], args.microbatches, loss_fn=cross_entropy)


def train_step(schedule: Any, optimizer: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    losses: list[torch.Tensor] = []
    tokens, targets = batch
    inputs = (tokens,) if dist.get_rank() == 0 else ()
    last = dist.get_rank() == dist.get_world_size() - 1
    schedule.step(*inputs, target=targets if last else None, losses=losses if last else None)
    with timed("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return float(torch.stack(losses).mean()) if last else float("nan")


def after_step() -> None:
    """Called at the end of each step."""


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    corpus, mine = Corpus(args.seed), stages(args)
    schedule = schedule_of(args, mine)
    optimizer = torch.optim.AdamW([p for s in mine for p in s.submod.parameters()], lr=args.lr)
    draw = torch.Generator().manual_seed(args.seed)
    last = dist.get_rank() == dist.get_world_size() - 1
    loss = float("nan")
    for step in range(args.steps):
        with timed("data"):
            batch = corpus.batch(args.batch * args.microbatches, args.length, draw)
        loss = train_step(schedule, optimizer, batch)
        if last:
            say(step, loss)
        after_step()
    if last:
        finish(loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
