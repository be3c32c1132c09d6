"""Train a small GPT-2 with the Trainer of Hugging Face's transformers.

torchrun --nproc-per-node 2 benchmarks/jobs/trainer.py --steps 50
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from gpt import VOCABULARY, Corpus, finish, parser, say
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, corpus: Corpus, length: int, count: int = 4096) -> None:
        self.data, self.length, self.count = corpus.data, length, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        start = at * 13 % (len(self.data) - self.length - 1)
        row = torch.tensor(self.data[start : start + self.length].astype("int64"))
        return {"input_ids": row, "labels": row}


class Printer(TrainerCallback):
    """Prints the loss of each step on rank 0."""

    last = float("nan")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            self.last = float(logs["loss"])
            say(state.global_step - 1, self.last)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--accumulate", type=int, default=2, help="microbatches in a step")
    flags.add_argument("--eval-every", type=int, default=0, help="0: never")
    flags.add_argument("--save-every", type=int, default=0, help="0: never")
    args = flags.parse_args()
    windows = Windows(Corpus(args.seed), args.length)
    torch.manual_seed(args.seed)
    shape = {"n_positions": args.length, "n_embd": args.width, "n_layer": args.layers, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **shape))
    printer = Printer()
    with tempfile.TemporaryDirectory() as folder:
        how = TrainingArguments(
            folder,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            gradient_accumulation_steps=args.accumulate,
            learning_rate=args.lr,
            seed=args.seed,
            use_cpu=True,
            ddp_backend="gloo",
            logging_steps=1,
            eval_strategy="steps" if args.eval_every else "no",
            eval_steps=args.eval_every or None,
            save_strategy="steps" if args.save_every else "no",
            save_steps=args.save_every or 500,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        few = torch.utils.data.Subset(windows, range(16))
        trainer = Trainer(model, how, train_dataset=windows, eval_dataset=few, callbacks=[printer])
        trainer.train()
    if trainer.is_world_process_zero():
        finish(printer.last)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
