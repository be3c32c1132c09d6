"""Parameters by number and name, and the size of state before it is there."""

import pytest
import torch

from pulsetrain.checkpoint.optimizers import (
    future_state_bytes,
    optimizer_names,
    optimizer_parameters,
    possible_names,
)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1, bias=False))


def test_parameters_are_numbered_over_all_groups():
    net = model()
    first, *rest = net.parameters()
    optimizer = torch.optim.SGD([{"params": rest}, {"params": [first]}], lr=0.1)
    numbered = optimizer_parameters(optimizer)
    assert all(map(torch.Tensor.is_set_to, numbered, [*rest, first]))


def test_names_are_those_in_the_model_for_any_parameter_groups():
    net = model()
    weight, bias, last = net.parameters()
    optimizer = torch.optim.AdamW([{"params": [last]}, {"params": [bias, weight]}])
    names = optimizer_names({"net": net, "opt": optimizer, "step": 3})
    assert names == {"opt": {0: "1.weight", 1: "0.bias", 2: "0.weight"}}


def test_with_several_models_names_begin_with_the_models_key():
    a, b, other = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False), torch.zeros(1)
    optimizer = torch.optim.SGD([a.weight, b.weight, other], lr=0.1)
    names = optimizer_names({"a": a, "b": b, "opt": optimizer})
    assert names == {"opt": {0: "a.weight", 1: "b.weight", 2: "2"}}  # the last is in no model


def test_every_name_that_a_parameter_may_have_been_saved_under():
    a, b = torch.nn.Linear(1, 1, bias=False), torch.nn.ModuleDict({"one": torch.nn.Linear(1, 1, bias=False)})
    b["tied"] = b["one"]
    optimizer = torch.optim.SGD([a.weight, b["one"].weight], lr=0.1)
    assert possible_names({"a": a, "b": b, "opt": optimizer}) == {
        "opt": {
            0: ("a.weight", "weight"),
            1: ("b.one.weight", "one.weight", "tied.weight", "b.tied.weight"),
        }
    }


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {}),
    ],
)
def test_the_size_of_coming_state_is_enough_and_not_far_too_much(kind, options):
    net = model()
    optimizer = kind(net.parameters(), lr=0.1, **options)
    promised = future_state_bytes(optimizer)
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    tensors = [t for entry in optimizer.state.values() for t in entry.values() if isinstance(t, torch.Tensor)]
    made = sum(t.numel() * t.element_size() for t in tensors)
    assert made <= promised <= made + 3 * 4 * 64  # alignment of each tensor
    assert not optimizer.state or future_state_bytes(optimizer) == 0
