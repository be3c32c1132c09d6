"""Backward passes, and the loss from which each begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from types import ModuleType
from typing import Any, TypeVar

import torch

from pulsetrain.collectors.rank.auto import graph, scales, untraced
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.scales import Losses

MEGATRON = "megatron.core.pipeline_parallel.schedules"
PIPELINING = "torch.distributed.pipelining.stage"

T = TypeVar("T")


def install(auto: Auto) -> None:
    """Wrap `torch.autograd.backward`, which `Tensor.backward` looks up at each call, and all scales.

    Megatron-LM calls the engine itself where it has freed the outputs of a pipeline stage. So does a schedule
    without bubbles: it goes backward to a stage's inputs first, and to its weights later.
    """
    losses = Losses()
    torch.autograd.backward = watched_backward(torch.autograd.backward, auto, losses)

    def megatron(module: ModuleType) -> None:
        if hasattr(module, "custom_backward"):  # other versions may have another name
            watched = watched_backward(module.custom_backward, auto, losses)
            module.custom_backward = watched  # type: ignore[attr-defined]

    def pipelining(module: ModuleType) -> None:
        if hasattr(module, "stage_backward_input") and hasattr(module, "stage_backward_weight"):
            first, second = module.stage_backward_input, module.stage_backward_weight
            module.stage_backward_input = watched_backward(first, auto, losses)  # type: ignore[attr-defined]
            second = watched_backward(second, auto, losses, goes_on=True)
            module.stage_backward_weight = second  # type: ignore[attr-defined]

    auto.imports.when_imported(MEGATRON, megatron)
    auto.imports.when_imported(PIPELINING, pipelining)
    scales.install(auto, losses)


def watched_backward(
    original: Callable[..., T], auto: Auto, losses: Losses, *, goes_on: bool = False
) -> Callable[..., T]:
    """Return `original`, which tells the loop when it begins and ends. Its errors pass untouched.

    `goes_on`: it completes a pass that was counted already.
    """
    loop, fault = auto.loop, auto.handle.fault

    def counted(tensors: object) -> graph.GraphCount:
        try:
            return graph.count(tensors)
        except Exception:  # noqa: BLE001 - a node of somebody else's: the pass itself is recorded all the same
            fault()
            return graph.GraphCount(0.0, 0)

    def tell(tensors: object, gradients: object) -> None:
        try:
            if goes_on:
                loop.go_on_backward()
                return
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
    def backward(*args: Any, **kwargs: Any) -> T:
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
