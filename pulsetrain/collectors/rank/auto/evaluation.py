"""Evaluation: the time in which the trained model is in evaluation mode."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pulsetrain.collectors.rank.auto import untraced
from pulsetrain.collectors.rank.auto.context import Auto

LEAST = 0.5
"""A module with this share of what the optimizers train is the trained model. A frozen teacher has none."""


def install(auto: Auto) -> None:
    """Wrap `Module.train`, which `Module.eval` calls too."""
    nn.Module.train = watched_train(nn.Module.train, auto)  # type: ignore[method-assign]


def watched_train(original: Callable[..., Any], auto: Auto) -> Callable[..., Any]:
    """Return `original`. The outermost call on the trained model begins or ends an evaluation."""
    is_trained, handle = _Trained(auto), auto.handle
    busy = False  # the main thread is in here: torch calls the children's `train` in turn

    @untraced.hook
    def changed(module: nn.Module) -> None:
        try:
            if auto.loop.listens and is_trained(module):
                if module.training:
                    auto.loop.end_evaluation()
                else:
                    auto.loop.begin_evaluation()
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()

    @functools.wraps(original)
    @untraced.wrapper
    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        nonlocal busy
        if torch.compiler.is_compiling() or busy or not auto.loop.trained or not handle.on_main_thread:
            return original(self, mode)  # type: ignore[no-any-return]
        busy = True
        try:
            result = original(self, mode)
        finally:
            busy = False
        changed(self)
        return result  # type: ignore[no-any-return]

    return train


class _Trained:
    """Knows the trained model, also where the optimizers train copies of its parameters.

    Asks a module once for each set of trained parameters.
    """

    def __init__(self, auto: Auto) -> None:
        self._auto = auto
        self._asked: weakref.WeakKeyDictionary[nn.Module, tuple[int, int, bool]] = weakref.WeakKeyDictionary()

    def __call__(self, module: nn.Module) -> bool:
        loop = self._auto.loop
        sets = id(loop.trained), id(loop.copied)
        known = self._asked.get(module)
        if known is None or known[:2] != sets:
            known = (*sets, _holds(module, loop.trained) or _holds(module, loop.copied))
            self._asked[module] = known
        return known[2]


def _holds(module: nn.Module, trained: Mapping[int, int]) -> bool:
    held = sum(trained.get(id(parameter), 0) for parameter in module.parameters())
    return held > 0 and held >= LEAST * sum(trained.values())
