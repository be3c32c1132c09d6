"""The callbacks leave no phase open that nothing would end, and count on. Their events are told by hand."""

from __future__ import annotations

import contextlib
import weakref
from types import SimpleNamespace

import pytest
import torch


class Phases:
    """Which phase is open, and what was said of steps."""

    def __init__(self):
        self.open, self.resumed, self.losses, self.faults = None, None, [], 0
        self.switched = None

    def to(self, name):
        self.open = name

    def resume(self, step):
        self.resumed = step

    def step(self):
        pass

    def log(self, loss):
        self.losses.append(float(loss))

    def fault(self):
        self.faults += 1

    def phase(self, name):
        return contextlib.nullcontext()


@pytest.fixture
def phases(monkeypatch):
    told = Phases()
    monkeypatch.setattr("pulsetrain.init", lambda: told)
    return told


def test_transformers_evaluations_of_a_second_data_set_and_after_the_training(phases):
    callback = pytest.importorskip("pulsetrain.integrations.transformers").PulsetrainCallback()
    callback._phase = phases
    state, told = SimpleNamespace(global_step=0), []
    control = SimpleNamespace(should_log=False, should_evaluate=True, should_save=False)
    callback.on_train_begin(None, state, control)
    callback.on_step_end(None, state, control)
    for _ in range(2):
        callback.on_prediction_step(None, state, control)
        told.append(phases.open)
        callback.on_evaluate(None, state, control)
    callback.on_train_end(None, state, control)
    callback.on_prediction_step(None, state, control)
    callback.on_evaluate(None, state, control)
    callback.on_save(None, state, control)
    assert told == ["evaluation", "evaluation"]
    assert phases.open is None


@pytest.fixture
def training(phases):
    """A callback of transformers in the middle of a training."""
    callback = pytest.importorskip("pulsetrain.integrations.transformers").PulsetrainCallback()
    callback._phase = phases
    callback.on_train_begin(None, SimpleNamespace(global_step=0), None)
    return callback


def control(**flags):
    return SimpleNamespace(**{"should_log": False, "should_evaluate": False, "should_save": False, **flags})


@pytest.mark.parametrize(
    ("flags", "follows"),
    [({}, "data"), ({"should_save": True}, "checkpoint"), ({"should_evaluate": True}, "evaluation")],
)
def test_transformers_saves_and_evaluates_at_the_end_of_an_epoch(phases, training, flags, follows):
    training.on_step_end(None, None, control())
    training.on_epoch_end(None, None, control(**flags))
    assert phases.open == follows


def test_transformers_may_save_the_best_model_behind_an_evaluation(phases, training):
    how = SimpleNamespace(save_strategy="best")
    training.on_step_end(how, None, control(should_evaluate=True))
    training.on_evaluate(how, None, control())
    assert phases.open is None
    training.on_save(how, None, control())
    assert phases.open == "data"


def test_transformers_predicts_in_the_middle_of_the_training(phases, training):
    training.on_step_end(None, None, control())
    training.on_prediction_step(None, None, control())
    assert phases.open == "evaluation"
    training.on_predict(None, None, control(), {})
    assert phases.open == "data"
    training.on_prediction_step(None, None, control())
    assert phases.open == "evaluation"


def test_lightning_saves_when_and_after_the_training_ends(phases):
    callback = pytest.importorskip("pulsetrain.integrations.lightning").PulsetrainCallback()
    callback._phase = phases
    trainer = SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, None)
    callback.on_train_end(trainer, None)
    callback.on_save_checkpoint(trainer, None, {})
    assert phases.open == "checkpoint"
    callback.on_fit_end(trainer, None)
    callback.on_save_checkpoint(trainer, None, {})
    assert phases.open is None


def test_lightning_goes_on_from_the_steps_it_has_ended_where_two_optimizers_step_in_one(phases):
    lightning = pytest.importorskip("pulsetrain.integrations.lightning")
    module = SimpleNamespace(automatic_optimization=False)
    before = lightning.PulsetrainCallback()
    before._phase = before._watch = phases
    before.on_train_start(SimpleNamespace(global_step=0), module)
    for batch in range(3):
        trainer = SimpleNamespace(global_step=2 * batch + 2)
        before.on_train_batch_end(trainer, module, None, None, batch)
    after = lightning.PulsetrainCallback()
    after._phase = after._watch = phases
    after.load_state_dict(before.state_dict())
    after.on_train_start(SimpleNamespace(global_step=6), module)
    assert phases.resumed == 3


@pytest.mark.parametrize(("state", "step"), [({}, 5), ({"trainer_step": 5}, 5), ({"trainer_step": 4}, 6)])
def test_lightning_counts_a_step_that_another_callback_saved_before_it_had_ended(phases, state, step):
    callback = pytest.importorskip("pulsetrain.integrations.lightning").PulsetrainCallback()
    callback.load_state_dict({"steps": 5, **state})
    callback.on_train_start(SimpleNamespace(global_step=5), None)
    assert phases.resumed == step


def test_lightning_goes_on_from_the_trainers_step_where_the_checkpoint_says_none(phases):
    callback = pytest.importorskip("pulsetrain.integrations.lightning").PulsetrainCallback()
    callback.on_train_start(SimpleNamespace(global_step=6), None)
    assert phases.resumed == 6


@pytest.fixture
def fitting(phases):
    """A callback of Lightning in the middle of a fit."""
    callback = pytest.importorskip("pulsetrain.integrations.lightning").PulsetrainCallback()
    callback._phase = phases
    callback.on_train_start(SimpleNamespace(global_step=0), None)
    return callback


def end_batches(callback, outputs, *, automatic, accumulate=1):
    """The last of them ends a step."""
    module = SimpleNamespace(automatic_optimization=automatic)
    for number, output in enumerate(outputs, 1):
        step = callback._steps + (number == len(outputs))
        trainer = SimpleNamespace(global_step=step, accumulate_grad_batches=accumulate)
        callback.on_train_batch_end(trainer, module, output, None, number)


def test_lightning_tells_the_mean_loss_of_a_last_step_with_fewer_batches(phases, fitting):
    for losses in ((3.0, 6.0, 9.0), (4.0, 2.0)):
        divided = [torch.tensor(loss / 3) for loss in losses]
        end_batches(fitting, divided, automatic=True, accumulate=3)
    end_batches(fitting, [{"loss": torch.tensor(2.0)}, {"loss": torch.tensor(4.0)}], automatic=False)
    assert phases.losses == pytest.approx([6.0, 3.0, 3.0])


def test_lightning_trains_on_whatever_a_module_that_optimizes_by_itself_returns(phases, fitting):
    pieces = [{"loss": torch.ones(size)} for size in (8, 8, 3)]
    end_batches(fitting, pieces, automatic=False)
    end_batches(fitting, [{"loss": object()}], automatic=False)
    assert (phases.losses, phases.faults) == ([], 1)


class Loss:
    """A number that shows whether somebody keeps it."""

    def numel(self):
        return 1

    def detach(self):
        return self

    def __add__(self, other):
        return Loss()


def test_lightning_keeps_no_losses_of_a_module_whose_steps_it_does_not_count(phases, fitting):
    module = SimpleNamespace(automatic_optimization=False)
    trainer = SimpleNamespace(global_step=0)
    losses = [Loss() for _ in range(3)]
    told = [weakref.ref(loss) for loss in losses]
    while losses:
        fitting.on_train_batch_end(trainer, module, losses.pop(), None, 0)
    assert [loss() for loss in told] == [None] * 3


def test_lightning_loads_data_behind_a_validation_and_at_the_beginning_of_an_epoch(phases, fitting):
    fitting.on_validation_start(None, None)
    fitting.on_validation_end(None, None)
    assert phases.open == "data"
    fitting.on_save_checkpoint(None, None, {})
    fitting.on_train_epoch_start(None, None)
    assert phases.open == "data"
    fitting.on_fit_end(None, None)
    fitting.on_validation_start(None, None)
    fitting.on_validation_end(None, None)
    assert phases.open is None
