"""Train a small GPT with DistributedDataParallel, gradient accumulation, evaluation and checkpoints.

torchrun --nproc-per-node 2 benchmarks/jobs/ddp.py --steps 50
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, Corpus, finish, parser, say
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function as timed


def arguments() -> Any:
    flags = parser(__doc__)
    flags.add_argument("--accumulate", type=int, default=2, help="microbatches in a step")
    flags.add_argument("--eval-every", type=int, default=0, help="0: never")
    flags.add_argument("--save-every", type=int, default=0, help="0: never")
    flags.add_argument("--out", type=Path, default=None, help="folder of ckpt.pt; resumes from it")
    flags.add_argument("--amp", action="store_true", help="bfloat16 autocast and a gradient scaler")
    flags.add_argument("--clip", type=float, default=1.0)
    flags.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return flags.parse_args()


def draw_of(seed: int, step: int) -> torch.Generator:
    """The random numbers of a step, so that a resumed run draws the same ones."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) * dist.get_world_size() + dist.get_rank())


class Trainer:
    def __init__(self, args: Any, device: torch.device) -> None:
        torch.manual_seed(args.seed)
        self.args, self.device = args, device
        self.corpus = Corpus(args.seed)
        self.raw = GPT(args.width, args.layers, args.length).to(device)
        self.model = DistributedDataParallel(self.raw)
        self.optimizer = torch.optim.AdamW(self.raw.parameters(), lr=args.lr)
        self.scaler = torch.amp.GradScaler(device.type, enabled=args.amp)
        self.autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp)
        self.first = self.resume()

    def batch(self, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = self.corpus.batch(self.args.batch, self.args.length, draw)
        return tokens.to(self.device), targets.to(self.device)

    def train_step(self, step: int) -> float:
        accumulate, draw = self.args.accumulate, draw_of(self.args.seed, step)
        total = 0.0
        for micro in range(accumulate):
            last = micro == accumulate - 1
            with timed("data"):
                tokens, targets = self.batch(draw)
            with contextlib.nullcontext() if last else self.model.no_sync():
                with timed("forward"), self.autocast:
                    _, loss = self.model(tokens, targets)
                    loss = loss / accumulate
                with timed("backward"):
                    self.scaler.scale(loss).backward()
            total += loss.item()
        with timed("optimizer"):
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.raw.parameters(), self.args.clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        return total

    @torch.no_grad()
    def evaluate(self, batches: int = 4) -> float:
        self.model.eval()
        draw = torch.Generator().manual_seed(1)
        losses = torch.stack([self.model(*self.batch(draw))[1] for _ in range(batches)])
        self.model.train()
        return float(losses.mean())

    def save(self, step: int) -> None:
        if dist.get_rank() == 0:
            self.args.out.mkdir(parents=True, exist_ok=True)
            state = {"model": self.raw.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
            torch.save(state, self.args.out / "ckpt.pt.new")
            os.replace(self.args.out / "ckpt.pt.new", self.args.out / "ckpt.pt")

    def resume(self) -> int:
        path = self.args.out / "ckpt.pt" if self.args.out else None
        if path is None or not path.exists():
            return 0
        state = torch.load(path, map_location=self.device)
        self.raw.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"]) + 1


def after_step() -> None:
    """Called at the end of each step."""


def main() -> None:
    args = arguments()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device(f"cuda:{local}" if args.device == "cuda" else "cpu")
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    trainer = Trainer(args, device)
    loss = float("nan")
    for step in range(trainer.first, args.steps):
        if args.eval_every and step % args.eval_every == 0:
            evaluated = trainer.evaluate()
            if dist.get_rank() == 0:
                print(f"eval {step} loss {evaluated:.6f}", flush=True)
        loss = trainer.train_step(step)
        if dist.get_rank() == 0:
            say(step, loss)
        after_step()
        if args.out and args.save_every and (step + 1) % args.save_every == 0:
            trainer.save(step)
    if dist.get_rank() == 0:
        finish(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
