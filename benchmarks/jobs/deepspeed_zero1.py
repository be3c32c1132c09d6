"""Train a small GPT with DeepSpeed's ZeRO stage 1.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 benchmarks/jobs/deepspeed_zero1.py --steps 50
"""

from __future__ import annotations

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from gpt import GPT, Corpus, finish, parser, say


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--local_rank", type=int, default=0, help="given by some launchers")
    flags.add_argument("--accumulate", type=int, default=2, help="microbatches in a step")
    args = flags.parse_args()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing to compile first
    deepspeed.init_distributed("gloo")
    torch.manual_seed(args.seed)
    model = GPT(args.width, args.layers, args.length)
    settings = {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_accumulation_steps": args.accumulate,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 30,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    corpus = Corpus(args.seed)
    draw = torch.Generator().manual_seed(args.seed * 1000 + dist.get_rank())
    value = float("nan")
    for step in range(args.steps):
        for _ in range(args.accumulate):
            _, loss = engine(*corpus.batch(args.batch, args.length, draw))
            engine.backward(loss)
            engine.step()
        value = loss.item()
        if dist.get_rank() == 0:
            say(step, value)
    if dist.get_rank() == 0:
        finish(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
