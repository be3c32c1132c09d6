"""Updates of frameworks that step torch's optimizers in their own way, and scale the loss themselves."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from pulsetrain.collectors.rank.auto import backward, engines, scales

INPUT = torch.ones(4, 3)


class Scaler:
    """As DeepSpeed's."""

    def scale_loss(self, loss):
        return loss * 65536.0


class ZeroOptimizer:
    """Keeps flat copies, and steps one optimizer once for each group of parameters, as DeepSpeed's does."""

    def __init__(self, model):
        self.flat = [nn.Parameter(p.detach().flatten().clone()) for p in model.parameters()]
        self.optimizer = torch.optim.AdamW([{"params": [p]} for p in self.flat], lr=1e-2)
        self.loss_scaler, self.overflow = Scaler(), False

    def scale_if_loss(self, value):
        return self.loss_scaler.scale_loss(value)

    def step(self):
        groups = self.optimizer.param_groups
        for group in [] if self.overflow else groups:
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = groups


class Engine:
    """As DeepSpeed's: one update is one call of `_take_model_step`."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def _take_model_step(self, lr_kwargs):
        self.optimizer.step()

    def step(self):
        self._take_model_step(None)


@pytest.fixture
def deepspeed(auto, monkeypatch):
    """DeepSpeed's modules, imported after our hooks are in."""
    made = {
        "deepspeed.runtime.engine": {"DeepSpeedEngine": type("DeepSpeedEngine", (Engine,), {})},
        "deepspeed.runtime.base_optimizer": {
            "DeepSpeedOptimizer": type("DeepSpeedOptimizer", (ZeroOptimizer,), {})
        },
        "deepspeed.runtime.fp16.loss_scaler": {"LossScalerBase": type("LossScalerBase", (Scaler,), {})},
    }
    for name, content in made.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(content)
    engines.install(auto)
    backward.install(auto)
    return SimpleNamespace(**{kind: owner for content in made.values() for kind, owner in content.items()})


def train(deepspeed, overflows=(), updates=4):
    """Return the losses."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = deepspeed.DeepSpeedOptimizer(model)
    engine, losses = deepspeed.DeepSpeedEngine(optimizer), []
    for i in range(updates):
        loss = model(INPUT).square().mean()
        optimizer.scale_if_loss(loss).backward()
        optimizer.overflow = i in overflows
        engine.step()
        losses.append(loss.item())
    return losses


def recorded(watched, auto):
    auto.loop.finish()
    return [(int(row["step"]), float(row["loss"])) for row in watched.reader.drain()[1]]


@pytest.mark.parametrize("overflows", [(), (0, 2)])
def test_an_update_of_several_groups_or_none_is_one_step_with_its_own_loss(
    watched, auto, deepspeed, overflows
):
    losses = train(deepspeed, overflows)
    assert recorded(watched, auto) == [(i, pytest.approx(loss)) for i, loss in enumerate(losses)]
    assert watched.errors == 0


def test_an_update_that_raises_raises_in_the_script_and_hides_none_that_follows(watched, auto, deepspeed):
    broken = deepspeed.DeepSpeedEngine(SimpleNamespace())
    with pytest.raises(AttributeError, match="step"):
        broken.step()
    losses = train(deepspeed)
    assert [step for step, _ in recorded(watched, auto)] == list(range(len(losses)))


def test_versions_with_other_names_are_left_alone(watched, auto, monkeypatch):
    for name in ("deepspeed.runtime.engine", "deepspeed.runtime.base_optimizer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    engines.install(auto)
    backward.install(auto)
    assert watched.errors == 0


class OlderScaler:
    """As DeepSpeed's before it had `scale_loss`."""

    def backward(self, loss, retain_graph=False):
        scaled = loss.float() * 65536.0
        scaled.backward(retain_graph=retain_graph)


@pytest.mark.parametrize(("name", "owner"), [scale[:2] for scale in scales.BACKWARDS])
def test_the_scale_of_a_scaler_that_goes_backward_itself_is_undone(watched, auto, monkeypatch, name, owner):
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    kind = type(owner, (OlderScaler,), {})
    setattr(sys.modules[name], owner, kind)
    backward.install(auto)
    model = nn.Linear(3, 3)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-9), []
    for _ in range(3):
        scaled, plain = (model(INPUT * i).square().mean() for i in (1, 2))
        kind().backward(scaled)
        plain.backward()
        optimizer.step()
        losses.append(scaled.item() + plain.item())
    assert recorded(watched, auto) == [(i, pytest.approx(loss)) for i, loss in enumerate(losses)]
    assert watched.errors == 0


def custom_backward(output, grad_output):
    """Megatron-LM's, for outputs that it has freed."""
    ones = torch.ones_like(output) if grad_output is None else grad_output
    torch.autograd.Variable._execution_engine.run_backward((output,), (ones,), False, False, (), True, True)


def test_a_backward_pass_that_megatron_runs_itself_is_seen(watched, auto, monkeypatch):
    module = ModuleType(backward.MEGATRON)
    module.custom_backward = custom_backward
    monkeypatch.setitem(sys.modules, backward.MEGATRON, module)
    backward.install(auto)
    model = nn.Linear(3, 3)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        loss = model(INPUT).square().mean()
        module.custom_backward(loss, None)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert recorded(watched, auto) == [(i, pytest.approx(loss)) for i, loss in enumerate(losses)]
