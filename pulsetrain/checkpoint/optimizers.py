"""An optimizer's parameters by number and name, and the size of state that it has not made yet."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from pulsetrain.checkpoint.memory.layout import aligned
from pulsetrain.checkpoint.sharding import local

_STATE_TENSORS: Mapping[str, int] = MappingProxyType({"Adagrad": 1, "RMSprop": 1, "ASGD": 1})  # others: 2


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Its parameters by number."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def optimizer_names(state: Mapping[str, object]) -> dict[str, dict[int, str]]:
    """For each optimizer of the state, the number of each parameter and its name in the state's modules.

    With one module they are the names in it, as torch.distributed.checkpoint has them.
    """
    modules = {key: m for key, m in state.items() if isinstance(m, torch.nn.Module)}
    names = {
        id(p): name if len(modules) == 1 else f"{key}.{name}"
        for key, module in modules.items()
        for name, p in module.named_parameters()
    }
    return {
        key: {i: names.get(id(p), str(i)) for i, p in enumerate(optimizer_parameters(optimizer))}
        for key, optimizer in state.items()
        if isinstance(optimizer, torch.optim.Optimizer)
    }


def possible_names(state: Mapping[str, object]) -> dict[str, dict[int, tuple[str, ...]]]:
    """As `optimizer_names`, with every name that a state with other modules may have given the parameter.

    That is each of its names in a module, with and without the module's key. The present one comes first.
    """
    found: dict[int, list[str]] = {}
    for key, module in state.items():
        if isinstance(module, torch.nn.Module):
            for name, parameter in module.named_parameters(remove_duplicate=False):
                found.setdefault(id(parameter), []).extend([name, f"{key}.{name}"])
    return {
        key: {
            number: tuple(dict.fromkeys([name, *found.get(id(parameter), ())]))
            for (number, name), parameter in zip(names.items(), _parameters_of(state[key]), strict=True)
        }
        for key, names in optimizer_names(state).items()
    }


def _parameters_of(value: object) -> list[torch.Tensor]:
    assert isinstance(value, torch.optim.Optimizer), "only optimizers have numbered parameters"
    return optimizer_parameters(value)


def future_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state that an optimizer makes in its first step. 0 where it has stepped already."""
    if optimizer.state:
        return 0
    kind = type(optimizer).__name__
    each = _STATE_TENSORS.get(kind, 2)
    if kind == "SGD":
        each = int(any(group.get("momentum") for group in optimizer.param_groups))
    parts = [local(p.detach()) for p in optimizer_parameters(optimizer) if p.requires_grad]
    return sum(each * (aligned(p.numel() * p.element_size())) + aligned(4) for p in parts)
