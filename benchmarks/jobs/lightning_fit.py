"""Train a small GPT with Lightning's Trainer.

torchrun --nproc-per-node 2 benchmarks/jobs/lightning_fit.py --steps 50
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from gpt import GPT, Corpus, finish, parser, say
from torch.utils.data import DataLoader, TensorDataset

EPOCH_STEPS = 1000  # so that the data of long runs fits in memory


class Module(lightning.LightningModule):
    def __init__(self, args: Any) -> None:
        super().__init__()
        self.lr = args.lr
        self.model = GPT(args.width, args.layers, args.length)
        self.last = float("nan")

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        _, loss = self.model(*batch)
        assert loss is not None
        self.last = loss.item()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        if self.global_rank == 0:
            say(self.global_step - 1, self.last)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.model(*batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--eval-every", type=int, default=0, help="0: never")
    args = flags.parse_args()
    lightning.seed_everything(args.seed)
    world, per_node = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    epoch = min(args.steps, EPOCH_STEPS)
    tokens, targets = Corpus(args.seed).batch(
        epoch * args.batch * world, args.length, torch.Generator().manual_seed(0)
    )
    module = Module(args)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=per_node,
        num_nodes=world // per_node,
        max_steps=args.steps,
        max_epochs=-1,
        val_check_interval=args.eval_every or None,
        limit_val_batches=2 if args.eval_every else 0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(tokens, targets)
    trainer.fit(module, DataLoader(data, args.batch), DataLoader(data, args.batch))
    if trainer.is_global_zero:
        finish(module.last)


if __name__ == "__main__":
    main()
