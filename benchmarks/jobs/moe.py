"""Train a small mixture of experts, one group of experts on each rank, with all-to-all in both directions.

torchrun --nproc-per-node 2 benchmarks/jobs/moe.py --steps 50
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt import MLP, VOCABULARY, Attention, Corpus, Embedding, cross_entropy, finish, parser, say
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh


class Exchange(torch.autograd.Function):
    """Send rows to other ranks. The gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        ctx.sizes = send, receive
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        send, receive = ctx.sizes
        out = gradients[0].new_empty(sum(send), gradients[0].shape[1])
        dist.all_to_all_single(out, gradients[0].contiguous(), send, receive)
        return out, None, None


class Experts(nn.Module):
    """Each token goes to the expert that its router likes best. Rank r holds expert r."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size(), bias=False)
        self.expert = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weight, chosen = F.softmax(self.router(rows), dim=-1).max(dim=-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=dist.get_world_size())
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        send, receive = counts.tolist(), theirs.tolist()
        done = self.expert(Exchange.apply(rows[order], send, receive))
        back = Exchange.apply(done, receive, send)
        mixed = torch.zeros_like(rows).index_copy(0, order, back)
        return (mixed * weight[:, None]).view_as(x)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.experts = Attention(width, width // 4), Experts(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.experts(self.norm2(x))


def average_gradients(model: nn.Module) -> None:
    """All-reduce the gradients of what every rank has a copy of. Experts keep their own."""
    for name, parameter in model.named_parameters():
        if ".expert." not in name and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main() -> None:
    args = parser(__doc__).parse_args()
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))  # the world's own group
    torch.manual_seed(args.seed)
    width = args.width
    model = nn.Sequential(
        Embedding(width, args.length),
        *(Block(width) for _ in range(args.layers)),
        nn.LayerNorm(width),
        nn.Linear(width, VOCABULARY),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    corpus = Corpus(args.seed)
    draw = torch.Generator().manual_seed(args.seed * 1000 + dist.get_rank())
    value = float("nan")
    for step in range(args.steps):
        tokens, targets = corpus.batch(args.batch, args.length, draw)
        loss = cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        value = loss.item()
        if dist.get_rank() == 0:
            say(step, value)
    if dist.get_rank() == 0:
        finish(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
