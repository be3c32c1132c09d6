"""Train a small GPT through torch.compile and DistributedDataParallel.

torchrun --nproc-per-node 2 benchmarks/jobs/compiled.py --steps 50
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from gpt import GPT, Corpus, finish, parser, say
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--backend", default="inductor", help="of torch.compile")
    args = flags.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    corpus = Corpus(args.seed)
    wrapped = DistributedDataParallel(GPT(args.width, args.layers, args.length))
    model = torch.compile(wrapped, backend=args.backend)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=args.lr)
    draw = torch.Generator().manual_seed(args.seed * 1000 + dist.get_rank())
    value = float("nan")
    for step in range(args.steps):
        tokens, targets = corpus.batch(args.batch, args.length, draw)
        _, loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if dist.get_rank() == 0:
            say(step, value)
    if dist.get_rank() == 0:
        finish(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
