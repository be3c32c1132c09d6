"""Train a small GPT on what the worker processes of a DataLoader bring, with a DistributedSampler and epochs.

torchrun --nproc-per-node 2 benchmarks/jobs/loader.py --steps 50
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from gpt import GPT, Corpus, finish, parser, say
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences cut from the corpus, one after the other."""

    def __init__(self, corpus: Corpus, length: int, count: int) -> None:
        self.data, self.length, self.count = corpus.data, length, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = at * 13 % (len(self.data) - self.length - 1)
        row = torch.tensor(self.data[start : start + self.length + 1].astype("int64"))
        return row[:-1], row[1:]


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--workers", type=int, default=2, help="loader processes of a rank")
    flags.add_argument("--samples", type=int, default=64, help="size of the data set")
    args = flags.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    windows = Windows(Corpus(args.seed), args.length, args.samples)
    sampler: DistributedSampler[int] = DistributedSampler(windows, seed=args.seed)
    batches = DataLoader(windows, args.batch, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(GPT(args.width, args.layers, args.length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step, epoch, value = 0, 0, float("nan")
    while step < args.steps:
        sampler.set_epoch(epoch)
        for tokens, targets in batches:
            if step == args.steps:
                break
            _, loss = model(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.item()
            if dist.get_rank() == 0:
                say(step, value)
            step += 1
        epoch += 1
    if dist.get_rank() == 0:
        finish(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
