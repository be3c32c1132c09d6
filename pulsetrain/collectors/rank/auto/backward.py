"""Backward passes, and the loss from which each begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from types import ModuleType
from typing import Any

import torch

from pulsetrain.collectors.rank.auto import graph, scales, untraced
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.scales import Losses

MEGATRON = "megatron.core.pipeline_parallel.schedules"


def install(auto: Auto) -> None:
    """Wrap `torch.autograd.backward`, which `Tensor.backward` looks up at each call, and all scales.

    Megatron-LM calls the engine itself where it has freed the outputs of a pipeline stage.
    """
    losses = Losses()
    torch.autograd.backward = watched_backward(torch.autograd.backward, auto, losses)

    def megatron(module: ModuleType) -> None:
        if hasattr(module, "custom_backward"):  # other versions may have another name
            watched = watched_backward(module.custom_backward, auto, losses)
            module.custom_backward = watched  # type: ignore[attr-defined]

    auto.imports.when_imported(MEGATRON, megatron)
    scales.install(auto, losses)


def watched_backward(original: Callable[..., None], auto: Auto, losses: Losses) -> Callable[..., None]:
    """Return `original`, which tells the loop when it begins and ends. Its errors pass untouched."""
    loop, fault = auto.loop, auto.handle.fault

    def counted(tensors: object) -> graph.GraphCount:
        try:
            return graph.count(tensors)
        except Exception:  # noqa: BLE001 - a node of somebody else's: the pass itself is recorded all the same
            fault()
            return graph.GraphCount(0.0, 0)

    def tell(tensors: object, gradients: object) -> None:
        try:
            if loop.wants_graph:
                began_ns = perf_counter_ns()
                loop.take_graph(counted(tensors), perf_counter_ns() - began_ns)
            loop.begin_backward(None if loop.in_backward or loop.overfull else losses.of(tensors, gradients))
        except Exception:  # noqa: BLE001 - the script must not see our faults
            fault()

    @untraced.hook
    def begin(tensors: object, gradients: object) -> bool:
        if not loop.listens:
            return False
        try:
            tell(tensors, gradients)
            auto.handle.raise_of_hold()
        except BaseException:  # a signal handler's: the script may catch it and go on
            loop.end_backward()
            raise
        return True

    @untraced.hook
    def end() -> None:
        try:
            loop.end_backward()
        except Exception:  # noqa: BLE001 - as above
            fault()
        auto.handle.raise_of_hold()

    @functools.wraps(original)
    @untraced.wrapper
    def backward(*args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        tensors = args[0] if args else kwargs.get("tensors")
        if not begin(tensors, args[1] if len(args) > 1 else kwargs.get("grad_tensors")):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            end()

    return backward
