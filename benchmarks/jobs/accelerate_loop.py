"""Train a small GPT in a loop of one's own around Hugging Face's accelerate.

torchrun --nproc-per-node 2 benchmarks/jobs/accelerate_loop.py --steps 50
"""

from __future__ import annotations

from itertools import chain, islice, repeat

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from gpt import GPT, Corpus, finish, parser, say
from torch.utils.data import DataLoader, TensorDataset

EPOCH_STEPS = 1000  # so that the data of long runs fits in memory


def samples(corpus: Corpus, length: int, count: int) -> TensorDataset:
    tokens, targets = corpus.batch(count, length, torch.Generator().manual_seed(0))
    return TensorDataset(tokens, targets)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--accumulate", type=int, default=2, help="microbatches in a step")
    args = flags.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(args.seed)
    model = GPT(args.width, args.layers, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    epoch = min(args.steps, EPOCH_STEPS)
    count = epoch * args.accumulate * args.batch * accelerator.num_processes
    loader = DataLoader(samples(Corpus(args.seed), args.length, count), args.batch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, value = 0, float("nan")
    batches = chain.from_iterable(repeat(loader))
    for tokens, targets in islice(batches, args.steps * args.accumulate):
        with accelerator.accumulate(model):
            _, loss = model(tokens, targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            value = accelerator.gather(loss.detach()).mean().item()
            if accelerator.is_main_process:
                say(step, value)
            step += 1
    if accelerator.is_main_process:
        finish(value)
    accelerator.end_training()


if __name__ == "__main__":
    main()
