"""A tensor-parallel model whose replicas may lose ranks and go on.

    pulsetrain run --nnodes 4:8 --node-unit 4 --node-unit-min 3 --nproc-per-node 1 examples/train_unequal.py

Two replicas of four ranks each. When one rank is lost and no node stands by, its replica goes on with three
and computes fewer samples. The gradients are the same as before. No rank that is left starts anew.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import pulsetrain
from pulsetrain.elastic.gradient_sync import GradientSync, ParameterLayout
from pulsetrain.elastic.split_state import split_state
from pulsetrain.elastic.unequal_replicas import UnequalReplicas

WIDTH = 16


class _Sum(torch.autograd.Function):
    """The sum over a tensor-parallel group. Every rank has the same gradient, which passes through."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Network(nn.Module):
    """A hidden layer of which this rank has some columns, and a bias that all have."""

    def __init__(self, columns: int, held: tuple[int, ...]) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(0)
        up = torch.randn(WIDTH, columns, generator=source, dtype=torch.float64) / WIDTH**0.5
        down = torch.randn(columns, WIDTH, generator=source, dtype=torch.float64) / columns**0.5
        mine = torch.tensor(held, dtype=torch.long)
        self.up, self.down = nn.Parameter(up[:, mine]), nn.Parameter(down[mine])
        self.bias = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, inputs: Tensor, group: dist.ProcessGroup) -> Tensor:
        """The result on every rank of the group."""
        part = torch.tanh(inputs @ self.up) @ self.down
        total: Tensor = _Sum.apply(part, group)
        return total + self.bias


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--degree", type=int, default=4, help="ranks of a whole replica")
    parser.add_argument("--columns", type=int, default=29, help="hidden columns; any number")
    parser.add_argument("--batch", type=int, default=14, help="samples in a step, over all replicas")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="sleep so long in each step")
    return parser.parse_args()


def batch(args: argparse.Namespace, step: int, samples: range) -> tuple[Tensor, Tensor]:
    """The samples of a step that one replica computes: inputs, and what is to be learned of them."""
    source = torch.Generator().manual_seed(step)
    inputs = torch.randn(args.batch, WIDTH, generator=source, dtype=torch.float64)
    mine = inputs[samples.start : samples.stop]
    return mine, torch.sin(2 * mine.roll(1, dims=1))


def train(args: argparse.Namespace) -> None:
    """Set up, restore, train, and say what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    replicas = UnequalReplicas.of_environment(args.degree)
    groups, columns = replicas.groups(), replicas.mapping(args.columns)
    model = Network(args.columns, replicas.held(args.columns))
    layouts = {
        "up": ParameterLayout(parameter=model.up, mapping=columns, dim=1),
        "down": ParameterLayout(parameter=model.down, mapping=columns, dim=0),
        "bias": ParameterLayout(parameter=model.bias),
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sync = GradientSync(list(layouts.values()), groups)
    watch = pulsetrain.init()
    checkpointer = pulsetrain.Checkpointer(split_state(layouts, optimizer, replicas.local_rank))
    done = checkpointer.restore()
    samples, total = replicas.samples(args.batch), torch.zeros(())
    for step in range(0 if done is None else done + 1, args.steps):
        inputs, targets = batch(args, step, samples)
        with watch.phase("forward"):
            loss = (model(inputs, groups.tensor) - targets).square().sum() / (args.batch * WIDTH)
        loss.backward()
        sync.finish()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        time.sleep(args.pause)
        watch.step()
        checkpointer.save(step)
    if replicas.local_rank == 0 and groups.data is not None:  # one rank of each replica
        dist.all_reduce(total, group=groups.data)
    if replicas.rank == 0:
        degrees = ",".join(map(str, replicas.degrees))
        print(f"degrees {degrees} loss {total:.15f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


@pulsetrain.restartable
def main() -> None:
    """Called again in the same process after a fault elsewhere, perhaps at other degrees."""
    train(arguments())


if __name__ == "__main__":
    main()
