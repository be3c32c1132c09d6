"""A data-parallel training script of somebody else: it knows nothing of Pulsetrain. Prints its losses."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(32, (32, 17)))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    total = 0.0
    for i, (tokens,) in enumerate(loader):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / ACCUMULATE
        loss.backward()
        total += loss.item()
        if i % ACCUMULATE == ACCUMULATE - 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            print(f"loss {total:.6f}", flush=True)
            total = 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
