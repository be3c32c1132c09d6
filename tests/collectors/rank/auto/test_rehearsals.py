"""What a framework or a schedule trains only to learn something is no training."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from pulsetrain.collectors.rank.auto import rehearsals


def test_what_a_stage_runs_to_learn_shapes_is_no_training(auto, watched):
    """A loss may go backward in pieces. A schedule looks at it first with tensors of no meaning."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def backward(value):
        model(torch.tensor([[value]])).sum().backward()

    rehearsals.unheard(backward, auto)(float("nan"))
    with pytest.raises(RuntimeError):
        rehearsals.unheard(torch.Tensor.backward, auto)(torch.zeros(1))
    optimizer.zero_grad()
    backward(2.0)
    optimizer.step()
    auto.loop.finish()
    wanted = model(torch.tensor([[2.0]])).item()
    assert [float(step["loss"]) for step in watched.reader.drain()[1]] == [pytest.approx(wanted)]


def train(model, optimizer, steps):
    for _ in range(steps):
        model(torch.ones(2, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("search", rehearsals.SEARCHES)
def test_steps_of_a_search_are_none_of_the_training(auto, watched, monkeypatch, search):
    """The search for a learning rate trains, and puts back a model whose optimizer begins to count anew."""
    model = nn.Linear(1, 1)
    framework = ModuleType(search.module)

    def look(steps):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps)
        return 0.01

    setattr(framework, search.name, look)
    monkeypatch.setitem(sys.modules, search.module, framework)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    rehearsals.install(auto)
    assert getattr(framework, search.name)(5) == 0.01
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), 3)
    auto.loop.finish()
    assert [int(step["step"]) for step in watched.reader.drain()[1]] == [0, 1, 2]


def test_a_rehearsal_inside_another_one_does_not_end_it(auto):
    inner = rehearsals.unheard(lambda: None, auto)

    def outer():
        inner()
        return auto.loop.rehearses

    assert rehearsals.unheard(outer, auto)()
    assert not auto.loop.rehearses
