"""One process that trains with a framework and its callback. The argument names the framework."""

from __future__ import annotations

import json
import sys
import tempfile

import torch
from torch import nn

from pulsetrain.collectors.rank import bootstrap


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), at / 64), "labels": torch.ones(1)}


def transformers(folder: str) -> None:
    from transformers import Trainer, TrainingArguments

    from pulsetrain.integrations.transformers import PulsetrainCallback

    how = TrainingArguments(
        folder,
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(Model(), how, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[PulsetrainCallback()]).train()


def lightning(folder: str) -> None:
    import lightning

    from pulsetrain.integrations.lightning import PulsetrainCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            losses.append(loss.item())
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    losses: list[float] = []
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=6,
        accumulate_grad_batches=2,
        val_check_interval=6,
        num_sanity_val_steps=0,
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            PulsetrainCallback(),
            lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=3),
        ],
    )
    data = torch.utils.data.DataLoader(Rows(), 2)
    trainer.fit(Module(), data, data)
    print(json.dumps([(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)]))


if __name__ == "__main__":
    torch.manual_seed(0)
    bootstrap.install()
    with tempfile.TemporaryDirectory() as scratch:
        {"transformers": transformers, "lightning": lightning}[sys.argv[1]](scratch)
