"""Backward passes, and the loss from which each begins."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pulsetrain.collectors.rank.auto import graph, untraced
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.numbers import Number, number


def install(auto: Auto) -> None:
    """Wrap both. `Tensor.backward` looks the first one up at each call.

    A class with a `scale` of its own, as FSDP's sharded scaler, is wrapped when a scaler of it is made.
    """
    losses = Losses()
    torch.autograd.backward = watched_backward(torch.autograd.backward, auto, losses)
    scaler = torch.amp.grad_scaler.GradScaler
    wrap_scale(scaler, auto, losses)
    scaler.__init__ = watched_init(scaler.__init__, auto, losses)  # type: ignore[method-assign]


class Losses:
    """Finds the loss in what a backward pass begins from, and undoes the scale of a `GradScaler`."""

    def __init__(self) -> None:
        self._scaled: weakref.ref[torch.Tensor] | None = None
        self._unscaled: torch.Tensor | None = None

    def remember(self, scaled: object, unscaled: object) -> None:
        """`scaled` was made from `unscaled`. Holds neither the graph nor the scaled tensor."""
        if isinstance(scaled, torch.Tensor) and isinstance(unscaled, torch.Tensor):
            self._scaled, self._unscaled = weakref.ref(scaled), unscaled.detach()

    def of(self, tensors: object, gradients: object) -> Number | None:
        """Return the loss: a single scalar. None for anything else.

        Scripts that write their own pipeline often give it a gradient of one element.
        """
        if isinstance(tensors, Sequence) and len(tensors) == 1:
            tensors = tensors[0]
        if isinstance(gradients, Sequence) and len(gradients) == 1:
            gradients = gradients[0]
        if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
            return None
        if isinstance(gradients, torch.Tensor) and gradients.numel() != 1:
            return None
        scaled, unscaled = self._scaled, self._unscaled
        self._scaled = self._unscaled = None
        if unscaled is not None and scaled is not None and scaled() is tensors:
            tensors = unscaled
        if tensors.is_meta or (tensors.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        try:
            return number(tensors.reshape(()))
        except (TypeError, ValueError, RuntimeError):  # no value on this rank, as of a partial DTensor
            return None


def watched_backward(original: Callable[..., None], auto: Auto, losses: Losses) -> Callable[..., None]:
    """Return `original`, which tells the loop when it begins and ends. Its errors pass untouched."""
    loop, fault = auto.loop, auto.handle.fault

    def counted(tensors: object) -> graph.GraphCount:
        try:
            return graph.count(tensors)
        except Exception:  # noqa: BLE001 - a node of somebody else's: the pass itself is recorded all the same
            fault()
            return graph.GraphCount(0.0, 0)

    @untraced.hook
    def begin(tensors: object, gradients: object) -> bool:
        try:
            if not loop.listens:
                return False
            if loop.wants_graph:
                loop.take_graph(counted(tensors))
            loop.begin_backward(None if loop.in_backward or loop.overfull else losses.of(tensors, gradients))
        except Exception:  # noqa: BLE001 - the script must not see our faults
            fault()
        auto.handle.raise_of_hold()
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


def wrap_scale(scaler: type, auto: Auto, losses: Losses) -> None:
    """Watch the `scale` of this class and of each one that it inherits from, once."""
    for kind in scaler.__mro__:
        original = vars(kind).get("scale")
        if inspect.isfunction(original) and not hasattr(original, "_pulsetrain"):
            kind.scale = watched_scale(original, auto, losses)  # type: ignore[attr-defined]


def watched_init(original: Callable[..., None], auto: Auto, losses: Losses) -> Callable[..., None]:
    """Return `GradScaler.__init__`, which every scaler's own calls."""

    @functools.wraps(original)
    def init(scaler: object, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        try:
            wrap_scale(type(scaler), auto, losses)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()

    return init


def watched_scale(original: Callable[..., Any], auto: Auto, losses: Losses) -> Callable[..., Any]:
    """Return `original`, which remembers what it scaled."""

    @untraced.hook
    def scaled(result: object, outputs: object) -> None:
        try:
            if auto.loop.listens:
                losses.remember(result, outputs)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()

    @functools.wraps(original)
    @untraced.wrapper
    def scale(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        outputs = args[1] if len(args) > 1 else kwargs.get("outputs")
        if outputs is not None and not torch.compiler.is_compiling():
            scaled(result, outputs)
        return result

    scale._pulsetrain = True  # type: ignore[attr-defined]  # so that it is not wrapped twice
    return scale
