"""Pipeline schedules: what their gradients are divided by, and what they run only to learn shapes.

A schedule divides the gradients of its microbatches. Then a step's loss is a mean, not a sum. Before the
first step a stage goes forward and backward once with tensors of no meaning, to learn what others will send.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.rehearsals import unheard

REHEARSALS = ("_forward_metadata_inference", "_backward_metadata_inference")
"""Methods of a stage in which its module and its loss run on tensors of no meaning."""


class Stage(Protocol):
    """One stage of a pipeline on this rank."""

    @property
    def is_last(self) -> bool:
        """Whether the losses are made here."""
        ...


def install(auto: Auto) -> None:
    """Wrap where stages divide gradients and learn shapes. Raises what a torch without pipelining raises."""
    from torch.distributed.pipelining.stage import PipelineStage, _PipelineStageBase

    wrapped = watched_scaling(_PipelineStageBase.scale_grads, auto)
    _PipelineStageBase.scale_grads = wrapped  # type: ignore[method-assign]
    for method in REHEARSALS:
        if hasattr(PipelineStage, method):  # they are torch's own, and may get other names
            setattr(PipelineStage, method, unheard(getattr(PipelineStage, method), auto))


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
