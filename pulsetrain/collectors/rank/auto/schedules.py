"""Pipeline schedules divide the gradients of their microbatches. Then a step's loss is a mean, not a sum."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from pulsetrain.collectors.rank.auto.context import Auto


class Stage(Protocol):
    """One stage of a pipeline on this rank."""

    @property
    def is_last(self) -> bool:
        """Whether the losses are made here."""
        ...


def install(auto: Auto) -> None:
    """Wrap where a stage divides its gradients. Raises what a torch without pipelining raises."""
    from torch.distributed.pipelining.stage import _PipelineStageBase

    wrapped = watched_scaling(_PipelineStageBase.scale_grads, auto)
    _PipelineStageBase.scale_grads = wrapped  # type: ignore[method-assign]


def watched_scaling(original: Callable[..., None], auto: Auto) -> Callable[..., None]:
    """Return `original`, which divides the losses of the step too where the stage is the last one."""

    @functools.wraps(original)
    def scale_grads(stage: Stage, grad_scale_factor: int) -> None:
        original(stage, grad_scale_factor)
        try:
            if auto.loop.listens and stage.is_last:
                auto.loop.divide_losses(grad_scale_factor)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()

    return scale_grads
