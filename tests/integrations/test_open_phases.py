"""The callbacks leave no phase open that nothing would end. Their events are told by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


class Phases:
    """Which phase is open, and what was said of steps."""

    def __init__(self):
        self.open, self.resumed = None, None

    def to(self, name):
        self.open = name

    def resume(self, step):
        self.resumed = step

    def step(self):
        pass


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
