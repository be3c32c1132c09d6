"""Train a byte-level GPT on the source text of Python's own standard library, with 3-D parallelism.

    torchrun --nproc-per-node 8 examples/train_gpt.py --tp 2 --pp 2 --dp 2 --steps 100
    pulsetrain run --nproc-per-node 8 examples/train_gpt.py --tp 2 --pp 2 --dp 2 --steps 100

Tensor parallelism is torch's DTensor, pipeline parallelism `torch.distributed.pipelining`, and data
parallelism one averaged gradient bucket a step. Gloo on CPUs, NCCL where every local rank has a GPU of its
own. Two runs of one shape, seed and number of steps end with the same parameters, bit for bit, however often
they were interrupted. The lines that use Pulsetrain are marked; without an agent they do nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pulsetrain  # [watch]

VOCABULARY = 256  # a token is a byte


def arguments() -> argparse.Namespace:
    """The command line; ends with one line and status 2 where the sizes do not fit each other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all")
    parser.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks")
    parser.add_argument("--pp", type=int, default=2, help="pipeline stages")
    parser.add_argument("--dp", type=int, default=2, help="data-parallel replicas, 0: all ranks")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a step, over all replicas")
    parser.add_argument(
        "--microbatches", type=int, default=2, help="pipeline microbatches in a replica's step"
    )
    parser.add_argument("--seq", type=int, default=64, help="bytes in a sequence")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks")
    parser.add_argument("--dim", type=int, default=128, help="width of the model")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters and of the data order")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--log-every", type=int, default=10, metavar="STEPS", help="print the loss this often"
    )
    parser.add_argument(
        "--params-hash-out", type=Path, metavar="FILE", help="write the parameters' hash here"
    )
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    args.dp = args.dp or max(1, world_size // (args.tp * args.pp))
    problem = misfit(args, world_size)
    if problem:
        if os.environ.get("RANK", "0") == "0":
            print(f"train_gpt: {problem}", file=sys.stderr, flush=True)
        sys.exit(2)
    return args


def misfit(args: argparse.Namespace, world_size: int) -> str:
    """What does not fit, as one line; empty where everything does."""
    needed = args.tp * args.pp * args.dp
    share = args.dp * args.microbatches
    checks = (
        (
            world_size == needed,
            f"TP {args.tp} x PP {args.pp} x DP {args.dp} needs {needed} ranks; there are {world_size}",
        ),
        (args.layers >= args.pp, f"--layers {args.layers}: at least --pp {args.pp} blocks are needed"),
        (args.heads % args.tp == 0, f"--heads {args.heads}: must be a multiple of --tp {args.tp}"),
        (args.dim % args.heads == 0, f"--dim {args.dim}: must be a multiple of --heads {args.heads}"),
        (args.batch % share == 0, f"--batch {args.batch}: must be a multiple of dp x microbatches = {share}"),
        (
            args.microbatches >= args.pp,
            f"--microbatches {args.microbatches}: at least --pp {args.pp} are needed",
        ),
    )
    return next((message for holds, message in checks if not holds), "")


def corpus(limit_bytes: int = 2 << 20) -> Tensor:
    """The first `limit_bytes` of the standard library's top-level modules in order of name, as uint8."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    return torch.frombuffer(text[:limit_bytes], dtype=torch.uint8)


def batch_of(text: Tensor, step: int, replica: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a replica's step, each (sequences, seq).

    The sequences of a step follow from seed and step alone, so that they are the same for any number of
    replicas.
    """
    order = torch.Generator().manual_seed(args.seed * 1_000_003 + step * 1_009)
    starts = torch.randint(len(text) - args.seq - 1, (args.batch, 1), generator=order)[replica :: args.dp]
    window = text[starts + torch.arange(args.seq + 1)].long()
    return window[:, :-1], window[:, 1:]


class Attention(nn.Module):
    """Causal self-attention. The fused projection is ordered by head, so that its shards hold whole heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        q, k, v = self.qkv(x).view(batch, seq, -1, 3, self.head_dim).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Stage(nn.Module):
    """The blocks of one pipeline stage; the first also embeds, the last also predicts."""

    def __init__(self, args: argparse.Namespace, stage: int) -> None:
        super().__init__()
        mine = range(stage * args.layers // args.pp, (stage + 1) * args.layers // args.pp)
        first, last = stage == 0, stage == args.pp - 1
        self.token = nn.Embedding(VOCABULARY, args.dim) if first else None
        self.position = nn.Parameter(torch.randn(args.seq, args.dim) * 0.02) if first else None
        self.blocks = nn.ModuleDict({str(i): Block(args.dim, args.heads) for i in mine})
        self.norm = nn.LayerNorm(args.dim) if last else None
        self.head = nn.Linear(args.dim, VOCABULARY, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.token is not None:
            x = self.token(x) + self.position
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def build(args: argparse.Namespace, mesh: DeviceMesh, device: torch.device) -> Stage:
    """This rank's stage: the same parameters on every replica, projections sharded over the tp ranks."""
    stage = mesh["pp"].get_local_rank()
    torch.manual_seed(args.seed * 1_000_003 + stage)
    model = Stage(args, stage).to(device)
    plan = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for block in model.blocks.values():
        parallelize_module(block, mesh["tp"], plan)
    return model


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter, gradient or buffer."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def pipeline(args: argparse.Namespace, mesh: DeviceMesh, model: Stage, device: torch.device) -> Schedule1F1B:
    """A one-forward-one-backward schedule; its shapes are given, so that no rank asks its neighbour."""
    index, rows = mesh["pp"].get_local_rank(), args.batch // args.dp // args.microbatches

    def edge(stage: int) -> Tensor:
        if stage == 0:
            return torch.empty(rows, args.seq, dtype=torch.long, device="meta")
        width = VOCABULARY if stage == args.pp else args.dim
        return torch.empty(rows, args.seq, width, device="meta", requires_grad=True)

    stage = PipelineStage(
        model,
        index,
        args.pp,
        device,
        input_args=edge(index),
        output_args=edge(index + 1),
        group=mesh["pp"].get_group(),
    )
    return Schedule1F1B(stage, args.microbatches, loss_fn=cross_entropy)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats per byte."""
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


class Trainer:
    """One rank's part of the job. `run_step` is one optimizer step."""

    def __init__(self, args: argparse.Namespace, mesh: DeviceMesh, device: torch.device) -> None:
        self.args, self.mesh, self.device = args, mesh, device
        self.replica = mesh["dp"].get_local_rank()
        self.text = corpus()
        self.model = build(args, mesh, device)
        self.schedule = pipeline(args, mesh, self.model, device)
        self.sharded = [p for p in self.model.parameters() if isinstance(p, DTensor)]
        self.replicated = [p for p in self.model.parameters() if not isinstance(p, DTensor)]
        groups = [{"params": self.sharded}, {"params": self.replicated}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
        self.state = {"model": self.model, "optimizer": self.optimizer}

    @property
    def flops(self) -> float:
        """Model FLOPs this rank owes for a step: 6 a parameter and token, and attention's share."""
        args = self.args
        weights: int = sum(local(p).numel() for p in self.model.parameters())
        tokens = args.batch // args.dp * args.seq
        return 6.0 * weights * tokens + 12.0 * len(self.model.blocks) * tokens * args.seq * args.dim / args.tp

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> float | None:
        """The pipeline over all microbatches; the mean loss on the last stage, None elsewhere."""
        first = self.mesh["pp"].get_local_rank() == 0
        if self.mesh["pp"].get_local_rank() != self.args.pp - 1:
            self.schedule.step(*((inputs,) if first else ()))
            return None
        losses: list[Tensor] = []
        self.schedule.step(*((inputs,) if first else ()), target=targets, losses=losses, return_outputs=False)
        return float(torch.stack(losses).detach().mean())

    def average_gradients(self) -> None:
        """One bucket with every local gradient, averaged over the replicas."""
        gradients = [local(p.grad) for p in self.sharded + self.replicated if p.grad is not None]
        bucket = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(bucket, group=self.mesh["dp"].get_group())
        bucket /= self.args.dp
        for gradient, mean in zip(gradients, bucket.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def clip(self, limit: float = 1.0) -> float:
        """Scale the gradient of the whole model to a norm of at most `limit`; the norm before."""
        squares = torch.zeros((), device=self.device)
        for share, parameters in ((1.0, self.sharded), (1.0 / self.args.tp, self.replicated)):
            for p in parameters:
                if p.grad is not None:
                    squares += local(p.grad).square().sum() * share
        dist.all_reduce(squares)
        norm = math.sqrt(float(squares) / self.args.dp)
        for p in self.sharded + self.replicated:
            if p.grad is not None and norm > limit:
                local(p.grad).mul_(limit / norm)
        return norm

    def update(self, step: int) -> float:
        """One AdamW step on a warmed-up cosine; the gradient norm."""
        norm = self.clip()
        warm = min(1.0, (step + 1) / 10)
        rate = self.args.lr * warm * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / self.args.steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


def parameters_hash(model: nn.Module) -> str:
    """SHA-256 over every rank's own hash of its local parameters, ranks in order; the same on every rank."""
    mine = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        mine.update(name.encode())
        mine.update(local(parameter.detach()).cpu().contiguous().numpy().tobytes())
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    digest = torch.frombuffer(bytearray(mine.digest()), dtype=torch.uint8).to(device)
    digests = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, digest)
    return hashlib.sha256(b"".join(bytes(d.cpu().tolist()) for d in digests)).hexdigest()


def set_up(args: argparse.Namespace) -> torch.device:
    """Join the process group; one thread, deterministic kernels. The device of this rank."""
    local_rank, local_size = (
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.device_count() >= local_size)
    device = torch.device("cuda", local_rank) if cuda and torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def train(args: argparse.Namespace) -> None:
    """The job: set up, restore, train, hash."""
    device = set_up(args)
    mesh = init_device_mesh(device.type, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    trainer = Trainer(args, mesh, device)
    state, dp = trainer.state, args.tp * args.pp == 1  # dp: every rank has the same state
    watch, checkpointer = pulsetrain.init(mesh=mesh), pulsetrain.Checkpointer(state, replicated=dp)  # [watch]
    restored = checkpointer.restore()  # [watch]
    speaks = [mesh[name].get_local_rank() for name in ("pp", "dp", "tp")] == [args.pp - 1, 0, 0]
    began = time.perf_counter()
    for step in range(0 if restored is None else restored + 1, args.steps):
        with watch.phase("data"):  # [watch]
            inputs, targets = (t.to(device) for t in batch_of(trainer.text, step, trainer.replica, args))
        loss = trainer.forward_backward(inputs, targets)
        trainer.average_gradients()
        with watch.phase("optimizer"):  # [watch]
            norm = trainer.update(step)
        watch.log(loss=loss, grad_norm=norm)  # [watch]
        watch.step(tokens=inputs.numel(), flops=trainer.flops)  # [watch]
        checkpointer.save(step)  # [watch]
        if speaks and (step + 1) % args.log_every == 0:
            elapsed = time.perf_counter() - began
            print(f"step {step + 1}/{args.steps} loss {loss:.4f} norm {norm:.3f} {elapsed:.1f} s", flush=True)
    finish(args, trainer.model)


def finish(args: argparse.Namespace, model: nn.Module) -> None:
    """Print and write the parameters' hash, then leave the process group."""
    digest = parameters_hash(model)
    if dist.get_rank() == 0:
        print(f"parameters {digest}", flush=True)
        if args.params_hash_out:
            args.params_hash_out.write_text(digest + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(arguments())
