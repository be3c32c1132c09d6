"""A callback for the Trainer of Hugging Face's transformers: steps, numbers and phases by explicit calls.

trainer = Trainer(model, args, callbacks=[PulsetrainCallback()])
"""

from __future__ import annotations

from collections.abc import Mapping

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import pulsetrain
from pulsetrain.integrations.phase_switch import PhaseSwitch


class PulsetrainCallback(TrainerCallback):  # type: ignore[misc]  # its types are not followed
    """Reports optimizer steps, the logged gradient norm, data loading, evaluations and checkpoints.

    A step that the Trainer logs ends with its log, any other with `on_step_end`. Forward, backward and each
    step's loss have no events here. They are inferred. Where that is off, the logged loss is reported.
    """

    def __init__(self) -> None:
        self._watch = pulsetrain.init()
        self._phase = PhaseSwitch(self._watch)
        self._waits_for_log = self._trains = self._evaluates = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Count from the step that the Trainer resumes at."""
        if state.global_step:
            self._watch.resume(state.global_step)
        self._trains = True
        self._phase.to("data")

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """The batch is there."""
        self._end_step()
        self._phase.to(None)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """The gradients are there."""
        self._phase.to("optimizer")

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """The parameters are new."""
        self._phase.to(None)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """End the step, unless its log comes next."""
        self._waits_for_log = True
        if not control.should_log:
            self._end_step()
        self._go_on(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """An evaluation or a checkpoint may follow that comes once in an epoch."""
        self._go_on(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Attach the numbers to the step that they belong to."""
        if self._waits_for_log and logs and "loss" in logs:
            loss = logs["loss"] if self._watch.inference is None else None
            self._watch.log(loss=loss, grad_norm=logs.get("grad_norm"))
        self._end_step()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """A batch was evaluated, maybe of a second data set."""
        if self._trains and not self._evaluates:
            self._evaluates = True
            self._phase.to("evaluation")

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """An evaluation is over. A checkpoint may follow, or the evaluation of another data set.

        Whether one of the best model follows is decided behind this event. So nothing is open until then.
        """
        self._evaluates = False
        if self._trains and control.should_save:
            self._phase.to("checkpoint")
        elif self._trains:
            self._phase.to(None if getattr(args, "save_strategy", "") == "best" else "data")

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *rest: object,
        **kwargs: object,
    ) -> None:
        """Predictions in the middle of the training are over."""
        self._evaluates = False
        if self._trains:
            self._phase.to("data")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """The checkpoint is written."""
        if self._trains:  # outside the training nothing would end the phase
            self._phase.to("data")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """End the last step and the last phase."""
        self._end_step()
        self._trains = self._evaluates = False
        self._phase.to(None)

    def _go_on(self, control: TrainerControl) -> None:
        """Begin what the Trainer does next."""
        self._evaluates = control.should_evaluate
        if control.should_evaluate:
            self._phase.to("evaluation")
        else:
            self._phase.to("checkpoint" if control.should_save else "data")

    def _end_step(self) -> None:
        if self._waits_for_log:
            self._waits_for_log = False
            self._watch.step()
