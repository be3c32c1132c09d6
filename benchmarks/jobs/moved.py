"""A small job on gloo that writes down what each rank did. Each rank draws its own data.

    moved.py --steps 450 --record DIR [--plain] [--width 64]

`rank-N` gets lines of attempt, pid, word and step. The words are `restored`, `saved` and `did`. `end-N` gets
the digest of the parameters. With `--plain` nothing is saved, and no line is Pulsetrain's.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

EVERY = 50
PAUSE_S = 0.02


def main() -> None:
    """Train to the last step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--width", type=int, default=64, help="of the one layer")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def tell(word: str, step: int) -> None:
        with (args.record / f"rank-{rank}").open("a") as file:  # no file stays open, so CRIU can restore
            file.write(f"{attempt} {os.getpid()} {word} {step}\n")

    torch.manual_seed(0)
    model = torch.nn.Linear(args.width, args.width)
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpointer, pulse, first = None, None, 0
    if not args.plain:
        import pulsetrain

        pulse = pulsetrain.init()
        checkpointer = pulsetrain.Checkpointer({"model": model, "optimizer": optimizer}, every=EVERY)
        done = checkpointer.restore()
        first = 0 if done is None else done + 1
    tell("restored", first - 1)
    for step in range(first, args.steps):
        model(torch.randn(16, args.width)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if checkpointer is not None and not checkpointer.save(step).skipped:
            tell("saved", step)
        tell("did", step)
        if pulse is not None:
            pulse.step()
        time.sleep(PAUSE_S)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    (args.record / f"end-{rank}").write_text(digest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
