"""Updates of DeepSpeed and Megatron-LM, whose own optimizers are none of torch's.

Such an update steps torch's optimizers inside it: one of them once for each group of parameters, or none
where gradients have overflowed. It is one update all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from pulsetrain.collectors.rank.auto import untraced
from pulsetrain.collectors.rank.auto.context import Auto


class Update(NamedTuple):
    """A method `owner.name` of `module` that makes one update."""

    module: str
    owner: str
    name: str


_MEGATRON = "megatron.core.optimizer.optimizer"
UPDATES = (
    Update("deepspeed.runtime.engine", "DeepSpeedEngine", "_take_model_step"),
    Update(_MEGATRON, "MixedPrecisionOptimizer", "step"),
    Update(_MEGATRON, "FP32Optimizer", "step"),
    Update(_MEGATRON, "ChainedOptimizer", "step"),
)


def install(auto: Auto) -> None:
    """Watch each kind of update once its module is imported."""
    for update in UPDATES:
        auto.imports.when_imported(update.module, _watch(update, auto))


def _watch(update: Update, auto: Auto) -> Callable[[ModuleType], None]:
    def imported(module: ModuleType) -> None:
        owner = getattr(module, update.owner, None)
        if hasattr(owner, update.name):  # other versions have other names
            setattr(owner, update.name, watched_update(getattr(owner, update.name), auto))

    return imported


def watched_update(original: Callable[..., Any], auto: Auto) -> Callable[..., Any]:
    """Return `original`, which is told as the step of one optimizer. What it raises passes untouched."""
    loop = auto.loop

    @untraced.hook
    def tell(event: Callable[..., None], owner: object, **named: bool) -> bool:
        try:
            if not loop.listens:
                return False
            event(id(owner), **named)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()
        auto.handle.raise_of_hold()
        return True

    @functools.wraps(original)
    @untraced.wrapper
    def update(owner: object, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not tell(loop.begin_optimizer, owner, closure=False):
            return original(owner, *args, **kwargs)
        result = original(owner, *args, **kwargs)
        tell(loop.end_optimizer, owner)
        return result

    return update
