"""The loss behind a scaled one: torch's `GradScaler`, and what DeepSpeed and Megatron-LM have instead."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch

from pulsetrain.collectors.rank.auto import untraced
from pulsetrain.collectors.rank.auto.after import call_after
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.scaled_sums import ScaledSums
from pulsetrain.collectors.rank.auto.wrapping import argument, wrap
from pulsetrain.collectors.rank.numbers import Number, number


class Scale(NamedTuple):
    """A method `owner.name` of `module` that scales its `argument`, a loss."""

    module: str
    owner: str
    name: str
    argument: str


SCALES = (
    Scale("deepspeed.runtime.base_optimizer", "DeepSpeedOptimizer", "scale_if_loss", "value"),
    Scale("deepspeed.runtime.fp16.loss_scaler", "LossScalerBase", "scale_loss", "loss"),
    Scale("megatron.core.optimizer.optimizer", "MegatronOptimizer", "scale_loss", "loss"),
)
"""These return the scaled loss."""
BACKWARDS = (
    Scale("deepspeed.runtime.fp16.loss_scaler", "LossScalerBase", "backward", "loss"),
    Scale("deepspeed.runtime.fp16.fused_optimizer", "FP16_Optimizer", "backward", "loss"),
    Scale("deepspeed.runtime.fp16.unfused_optimizer", "FP16_UnfusedOptimizer", "backward", "loss"),
)
"""These scale the loss and go backward from it at once, as in DeepSpeed before `scale_if_loss`."""
MOST_SCALED = 64
"""Scaled losses that are remembered at once. A script may scale several before it goes backward from any."""


def install(auto: Auto, losses: Losses) -> None:
    """Watch whatever scales a loss. Frameworks are watched once they are imported.

    A class with a `scale` of its own, as FSDP's sharded scaler, is wrapped when a scaler of it is made.
    """
    scaler = torch.amp.grad_scaler.GradScaler
    wrap_scale(scaler, auto, losses)
    scaler.__init__ = watched_init(scaler.__init__, auto, losses)  # type: ignore[method-assign]
    for scale in SCALES:
        auto.imports.when_imported(scale.module, _watch(scale, auto, losses))
    for scale in BACKWARDS:
        auto.imports.when_imported(scale.module, _watch_backward(scale, auto, losses))


def _watch(scale: Scale, auto: Auto, losses: Losses) -> Callable[[ModuleType], None]:
    def scaled(result: object, *args: object, **kwargs: object) -> None:
        if auto.loop.listens:
            losses.remember(result, argument(args, kwargs, 1, scale.argument))

    def imported(module: ModuleType) -> None:
        owner = getattr(module, scale.owner, None)
        if hasattr(owner, scale.name):  # other versions have other names
            call_after(owner, scale.name, scaled, auto.handle.fault)

    return imported


def _watch_backward(scale: Scale, auto: Auto, losses: Losses) -> Callable[[ModuleType], None]:
    def begin(args: tuple[object, ...], kwargs: Mapping[str, object]) -> _Backward | None:
        try:
            loss = argument(args, kwargs, 1, scale.argument)
            return _Backward(span=losses.beginning_from(loss)) if auto.loop.listens else None
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()
            return None

    def imported(module: ModuleType) -> None:
        owner = getattr(module, scale.owner, None)
        if owner is not None:
            wrap(owner, scale.name, begin)

    return imported


@dataclass(frozen=True, kw_only=True)
class _Backward:
    """One call that scales a loss and goes backward from it."""

    span: AbstractContextManager[None]

    def returned(self, result: object) -> None:
        """It needs nothing."""

    def raised(self) -> None:
        """It needs nothing."""


class Losses:
    """Finds the loss in what a backward pass begins from, and undoes its scale."""

    def __init__(self) -> None:
        self._unscaled: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}  # by id of the scaled
        self._sums = ScaledSums(MOST_SCALED)
        self._beginning: torch.Tensor | None = None

    def remember(self, scaled: object, unscaled: object) -> None:
        """`scaled` was made from `unscaled`, each one tensor or a sequence of them.

        Holds neither the graph nor a scaled tensor, and the loss behind one for as long as that lives.
        """
        if isinstance(scaled, list | tuple) and isinstance(unscaled, list | tuple):
            for pair in zip(scaled[:MOST_SCALED], unscaled, strict=False):
                self._remember(*pair)
        else:
            self._remember(scaled, unscaled)

    def _remember(self, scaled: object, unscaled: object) -> None:
        if not (isinstance(scaled, torch.Tensor) and isinstance(unscaled, torch.Tensor)):
            return
        if scaled is unscaled or unscaled.numel() != 1:
            return
        self._sums.remember(scaled, unscaled)
        known, key = self._unscaled, id(scaled)

        def gone(reference: weakref.ref[torch.Tensor]) -> None:
            if key in known and known[key][0] is reference:
                del known[key]

        known[key] = weakref.ref(scaled, gone), unscaled.detach()
        if len(known) > MOST_SCALED:
            known.pop(next(iter(known)), None)  # the oldest

    def _loss_behind(self, scaled: torch.Tensor) -> torch.Tensor:
        """Return what it was made from, itself where it was not scaled."""
        reference, unscaled = self._unscaled.get(id(scaled), (None, scaled))
        return unscaled if reference is None or reference() is scaled else scaled

    @contextlib.contextmanager
    def beginning_from(self, unscaled: object) -> Iterator[None]:
        """A backward pass inside begins from what is made of `unscaled`."""
        if isinstance(unscaled, torch.Tensor) and unscaled.numel() == 1:
            self._beginning = unscaled.detach()
        try:
            yield
        finally:
            self._beginning = None

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
        root = tensors
        tensors = self._loss_behind(tensors) if self._beginning is None else self._beginning
        if tensors.is_meta or (tensors.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        try:
            behind = self._sums.unscaled(root) if tensors is root else None
            return number(tensors.reshape(())) if behind is None else behind
        except (TypeError, ValueError, RuntimeError):  # no value on this rank, as of a partial DTensor
            return None


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
