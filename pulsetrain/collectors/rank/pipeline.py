"""Forward and backward of pipeline stages as phases with microbatch numbers, without a line in the script.

`torch.distributed.pipelining` runs every schedule through three methods of `_PipelineStageBase`. They are
wrapped at the class, so that stages that exist already are timed too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MappingProxyType
from typing import TypeVar

from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import RankState

T = TypeVar("T")

_METHODS = MappingProxyType(
    {
        "forward_one_chunk": "forward",
        "backward_one_chunk": "backward",
        "backward_weight_one_chunk": "backward",
    }
)


def install(handle: Handle) -> None:
    """Wrap the stage methods. Call it once. Raises what a torch without pipelining raises."""
    from torch.distributed.pipelining.stage import _PipelineStageBase

    state = handle.state
    if state is None:
        return
    for method, phase in _METHODS.items():
        original = getattr(_PipelineStageBase, method)
        setattr(_PipelineStageBase, method, _timed(original, handle, phase, state))


def _timed(original: Callable[..., T], handle: Handle, phase: str, state: RankState) -> Callable[..., T]:
    name = list(inspect.signature(original).parameters)[1]  # of the microbatch: schedules may pass it by name

    @functools.wraps(original)
    def chunk(*args: object, **kwargs: object) -> T:
        microbatch = args[1] if len(args) > 1 else kwargs.get(name)
        state.enter_microbatch(microbatch if isinstance(microbatch, int) else -1)
        try:
            with handle.hooked_phase(phase):
                return original(*args, **kwargs)
        finally:
            state.enter_microbatch(-1)

    return chunk
