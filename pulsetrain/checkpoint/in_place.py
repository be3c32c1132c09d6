"""Gives mappings, lists, tensors and arrays of a script their saved content where they are.

A script may hold them under names of its own, as in ``state = {"averages": averages}``.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from itertools import zip_longest

import numpy as np
import torch

from pulsetrain.checkpoint.memory.layout import Nested
from pulsetrain.checkpoint.optimizers import optimizer_parameters
from pulsetrain.checkpoint.sharding import local


class InPlace:
    """Fills each object once. What other entries of the state use too is left as it is and gets a copy.

    So are mappings of other libraries, such as a configuration that must not change: it may refuse to.
    """

    def __init__(self, state: Mapping[str, object]) -> None:
        self._used: set[tuple[str, int]] = set()
        for value in state.values():
            self._used.update(("memory", memory(tensor)) for tensor in _tensors_of(value))

    def fill(self, live: Nested, saved: Nested) -> Nested:
        """`live` with the saved content, or a copy of `saved` where it does not fit."""
        if isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor):
            return self._fill_tensor(live, saved)
        if isinstance(live, np.ndarray) and isinstance(saved, np.ndarray):
            return self._fill_array(live, saved)
        if isinstance(live, dict) and isinstance(saved, Mapping) and self._is_first("object", id(live)):
            content = {key: self.fill(live.get(key), one) for key, one in saved.items()}
            live.clear()
            live.update(content)
            return live
        if isinstance(live, list) and isinstance(saved, list) and self._is_first("object", id(live)):
            live[:] = [self.fill(old, new) for old, new in zip_longest(live[: len(saved)], saved)]
            return live
        if isinstance(live, tuple) and isinstance(saved, tuple) and len(live) == len(saved):
            return _tuple_like(live, [self.fill(old, new) for old, new in zip(live, saved, strict=True)])
        return copied(saved)

    def _fill_tensor(self, live: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        part, content = local(live.detach()), local(saved.detach())
        fits = (part.shape, part.dtype) == (content.shape, content.dtype) and not _overlaps(part)
        if not fits or not (live.numel() == 0 or self._is_first("memory", memory(live))):
            return saved.clone()
        with torch.no_grad():
            part.copy_(content)
        return live

    def _fill_array(self, live: np.ndarray, saved: np.ndarray) -> np.ndarray:
        fits = (live.shape, live.dtype) == (saved.shape, saved.dtype) and live.flags.writeable
        if not fits or not self._is_first("object", id(live)):
            return saved.copy()
        live[...] = saved
        return live

    def _is_first(self, kind: str, where: int) -> bool:
        """Whether nothing else of the state is there, so that nothing else changes with it."""
        if not where or (kind, where) in self._used:
            return False
        self._used.add((kind, where))
        return True


def copied(value: Nested) -> Nested:
    """A deep copy that shares no memory with the arena."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {k: copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(v) for v in value)
    return value


def typed_like(live: Nested, saved: Nested) -> Nested:
    """`saved` with the mappings and tuples of `live`, such as a `Counter`. A checkpoint has plain ones."""
    if isinstance(live, Mapping) and isinstance(saved, Mapping):
        content = {key: typed_like(live.get(key), one) for key, one in saved.items()}
        return _mapping_like(live, content)
    if isinstance(live, list | tuple) and isinstance(saved, list | tuple) and len(live) == len(saved):
        items = [typed_like(old, new) for old, new in zip(live, saved, strict=True)]
        return _tuple_like(live, items) if isinstance(live, tuple) else items
    return saved


def _mapping_like(live: Mapping[Nested, Nested], content: dict[Nested, Nested]) -> Mapping[Nested, Nested]:
    if not isinstance(live, Counter | OrderedDict | defaultdict):
        return content
    same = copy.copy(live)
    same.clear()
    same.update(content)
    return same


def _tuple_like(live: tuple[Nested, ...], items: list[Nested]) -> tuple[Nested, ...]:
    """A tuple of the type of `live`: also one with names, or a shape."""
    made: tuple[Nested, ...] = live._make(items) if hasattr(live, "_make") else type(live)(items)
    return made


def memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory. 0: it has none of its own."""
    try:
        return local(tensor.detach()).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor type that wraps others
        return 0


def _tensors_of(value: object) -> list[torch.Tensor]:
    """The tensors that an entry of a state fills in place by itself."""
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, torch.optim.Optimizer):
        kept = [one for state in value.state.values() for one in state.values()]
        return [*optimizer_parameters(value), *(one for one in kept if isinstance(one, torch.Tensor))]
    return [value] if isinstance(value, torch.Tensor) else []


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether several of its elements are one place in memory, as those of an expanded tensor."""
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
