"""Element types of an optimizer's state, which its own loader rounds to those of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def keep_types(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    state: Mapping[int, Mapping[str, object]],
) -> None:
    """Put back what the optimizer's own loader has rounded to its parameters' element type.

    `state` is what was loaded, by the number of its parameter.
    """
    for index, entry in state.items():
        kept = optimizer.state[parameters[index]]
        for name, value in entry.items():
            kept[name] = _typed(kept[name], value)


def _typed(live: Any, saved: Any) -> Any:
    """What is live, with the element types that were saved. Lists and mappings in it are looked into."""
    if isinstance(saved, torch.Tensor):
        return live if live.dtype == saved.dtype else saved.to(live.device)
    if isinstance(saved, Mapping):
        return {key: _typed(live[key], value) for key, value in saved.items()}
    if type(saved) in (list, tuple):
        return type(saved)(_typed(a, b) for a, b in zip(live, saved, strict=True))
    return live


def settings_like(live: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings of a parameter group. Those that are tensors are where the live ones are."""
    return {
        name: value.to(live[name].device)
        if isinstance(value, torch.Tensor) and isinstance(live.get(name), torch.Tensor)
        else value
        for name, value in saved.items()
    }
