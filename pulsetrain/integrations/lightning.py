"""A callback for Lightning's Trainer: steps, loss and phases by explicit calls.

    trainer = Trainer(callbacks=[PulsetrainCallback()])

It works with the package `lightning` and with the older `pytorch_lightning`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pulsetrain
from pulsetrain.integrations.phase_switch import PhaseSwitch

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer

if TYPE_CHECKING:
    import torch


class PulsetrainCallback(Callback):  # type: ignore[misc]  # its types are not followed
    """Reports optimizer steps, their loss, and the phases of a step, validation and checkpoints.

    A checkpoint's phase lasts until the next batch is there, or the epoch or the fit ends, because Lightning
    has no event for its end.
    """

    def __init__(self) -> None:
        self._watch = pulsetrain.init()
        self._phase = PhaseSwitch(self._watch)
        self._steps = 0
        self._trains = False
        self._ended = 0  # steps that were ended. Each optimizer of a manual optimisation adds to `_steps`
        self._restored: Mapping[str, int] | None = None  # as a checkpoint has it
        self._loss: torch.Tensor | None = None  # the sum of the step's batches so far
        self._batches = 0  # that it is the sum of

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps: how many steps were ended, and the Trainer's step at the last of them.

        A callback before this one may save a step that has not ended here.
        """
        return {"steps": self._ended, "trainer_step": self._steps}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """A checkpoint is restored."""
        self._restored = state_dict if "steps" in state_dict else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from the step that the Trainer resumes at."""
        if self._restored is not None:
            before = self._restored.get("trainer_step", trainer.global_step)
            self._ended = self._restored["steps"] + (trainer.global_step > before)
        elif trainer.global_step != self._steps:  # of a checkpoint that was written without this callback
            self._ended = trainer.global_step
        self._steps, self._restored = trainer.global_step, None
        self._loss, self._batches = None, 0
        if self._ended:
            self._watch.resume(self._ended)
        self._trains = True
        self._phase.to("data")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Its loaders begin. A checkpoint at the end of the epoch before is written."""
        self._phase.to("data")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """The batch is there."""
        self._phase.to("forward")

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """The loss is there."""
        self._phase.to("backward")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The gradients are there."""
        self._phase.to(None)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: object
    ) -> None:
        """The optimizer begins."""
        self._phase.to("optimizer")

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: torch.Tensor | Mapping[str, torch.Tensor] | None,
        batch: object,
        batch_idx: int,
    ) -> None:
        """End the step, if the batch ended one."""
        try:
            self._add_loss(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        except Exception:  # noqa: BLE001 - whatever a script returns must not end its training
            self._watch.fault()
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self._end_step(trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1)
        self._phase.to("data")

    def _add_loss(self, loss: torch.Tensor | None) -> None:
        """Add what a batch returned, if it is one number. One that optimizes by itself may return any."""
        if loss is not None and loss.numel() == 1:
            loss = loss.detach()
            self._loss = loss if self._loss is None else self._loss + loss
            self._batches += 1

    def _end_step(self, divisor: int) -> None:
        """End the step with the mean loss of its batches. Lightning has divided each by `divisor`.

        The last step of an epoch may have fewer batches than that.
        """
        self._phase.to(None)
        if self._loss is not None:
            self._watch.log(loss=self._loss * (divisor / self._batches))
        self._loss, self._batches = None, 0
        self._watch.step()
        self._ended += 1

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An evaluation begins."""
        self._phase.to("evaluation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """It is over."""
        self._phase.to("data" if self._trains else None)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]
    ) -> None:
        """A checkpoint is written from here on."""
        if self._trains:  # after the fit nothing would end the phase
            self._phase.to("checkpoint")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the last phase."""
        self._phase.to(None)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the phase of a checkpoint that was written when the training had ended."""
        self._trains = False
        self._phase.to(None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The phase that was open ends with the training."""
        self._trains = False
        self._phase.to(None)
