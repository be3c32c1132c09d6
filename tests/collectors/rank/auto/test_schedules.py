"""The loss of a step whose microbatches a pipeline schedule runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import stage as torchs_stage
from torch.distributed.pipelining.stage import PipelineStage, _PipelineStageBase

from pulsetrain.collectors.rank.auto import schedules


class Stage:
    """What a schedule divides: the gradients of one stage's parameters."""

    scale_grads = _PipelineStageBase.scale_grads

    def __init__(self, *, is_last):
        self.submod, self.is_last = nn.Linear(1, 1, bias=False), is_last


@pytest.fixture
def scaled(auto, monkeypatch):
    monkeypatch.setattr(Stage, "scale_grads", schedules.watched_scaling(Stage.scale_grads, auto))
    return auto


def train(auto, watched, *stages, factor):
    last = stages[-1]
    optimizer = torch.optim.SGD(last.submod.parameters(), lr=0.0)
    with torch.no_grad():
        last.submod.weight.fill_(1.0)
    for value in (2.0, 4.0):
        last.submod(torch.tensor([[value]])).sum().backward()
    for stage in stages:
        stage.scale_grads(factor)
    gradient = float(last.submod.weight.grad)
    optimizer.step()
    auto.loop.finish()
    return gradient, [float(step["loss"]) for step in watched.reader.drain()[1]]


def test_where_a_schedule_divides_the_gradients_the_loss_is_the_mean(scaled, watched):
    assert train(scaled, watched, Stage(is_last=True), factor=2) == (3.0, [3.0])


def test_where_it_does_not_the_loss_is_the_sum(scaled, watched):
    assert train(scaled, watched, Stage(is_last=True), factor=1) == (6.0, [6.0])


def test_a_loss_is_divided_once_on_a_rank_with_several_stages(scaled, watched):
    stages = (Stage(is_last=False), Stage(is_last=True))
    assert train(scaled, watched, *stages, factor=2) == (3.0, [3.0])


def test_torchs_stages_learn_shapes_unheard(auto, monkeypatch):
    for owner, names in ((PipelineStage, schedules.REHEARSALS), (_PipelineStageBase, ("scale_grads",))):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))  # and back
    schedules.install(auto)
    for method in schedules.REHEARSALS:
        assert hasattr(getattr(PipelineStage, method), "__wrapped__")


@pytest.mark.parametrize("in_two", [False, True])
def test_a_pass_to_the_inputs_and_then_to_the_weights_is_one_backward_pass(auto, watched, in_two):
    """Schedules without bubbles call the engine in another way than `backward` does."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wanted = []
    for step in range(4):
        waiting = []
        for microbatch in range(2):
            inputs = torch.full((3, 4), float(step + microbatch), requires_grad=True)
            loss = model(inputs).square().sum()
            wanted.append(float(loss.detach()))
            if in_two:
                found = torchs_stage.stage_backward_input((loss,), None, [inputs], model.parameters())
                waiting.append(found[1])
            else:
                torchs_stage.stage_backward(loss, None, [inputs])
        for groups in waiting:
            torchs_stage.stage_backward_weight(model.parameters(), groups)
        optimizer.step()
        optimizer.zero_grad()
    auto.loop.finish()
    steps = watched.reader.drain()[1]
    assert [float(step["loss"]) for step in steps] == pytest.approx(
        [first + second for first, second in zip(wanted[::2], wanted[1::2], strict=True)]
    )
    products = 3 * 4 * 8 + 3 * 8 * 1
    assert float(steps[3]["flops"]) == 2 * 3 * 2 * products  # two microbatches, forward and twice backward
