"""Tells a checkpoint of the training state from other things that a script saves.

What a script saves counts as training state by the tensors in it. Tensors that have the size of one of the
optimizers' parameters count, and a checkpoint holds at least half as many elements as all the parameters that
this rank trains. So half precision counts, and so do adapters that are trained alone. A tokenizer, a
configuration, and statistics do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

LOOKED_AT = 200_000  # objects inside what is saved. Beyond, the rest is not looked at
ALIKE = 1_000  # a container that begins with so many numbers or texts is taken to hold nothing else
PLAIN = (str, bytes, int, float)
FLAT_SHARE = 0.9  # a single one-dimensional parameter with so much of all elements is a flat buffer
FLAT_MEAN = 16_384  # several are flat buffers if they have so many elements on average. Biases have fewer
BUFFERS = 10_000  # flat buffers of an optimizer that are remembered


class Size(NamedTuple):
    """A parameter's elements on this rank, its elements altogether, and its dimensions."""

    local: int
    whole: int
    dimensions: int


class TrainedState:
    """The parameters that the optimizers of this process train, on this rank."""

    def __init__(self) -> None:
        self._buffers: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[int, Size]] = (
            weakref.WeakKeyDictionary()
        )
        self._known: tuple[int, list[Size]] | None = None  # number of optimizers, sizes of their parameters

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped.

        ZeRO-3 gives its optimizer one flat buffer for each step and takes it out again. So a single parameter
        is remembered.
        """
        self._known = None
        buffers = self._buffers.setdefault(optimizer, {})
        groups = [group["params"] for group in optimizer.param_groups if group["params"]]
        if len(groups) == 1 and len(groups[0]) == 1 and len(buffers) < BUFFERS:
            buffers[id(groups[0][0])] = size(groups[0][0])

    def share(self, saved: object) -> float:
        """Return how many elements of training state `saved` holds, for each element that is trained.

        0 if no optimizer has stepped, or if nothing in `saved` looks like training state.
        """
        tensors = [t for t in tensors_in(saved) if t.is_floating_point()] if self._buffers else []
        parameters = self._sizes() if tensors else []
        total = sum(p.local for p in parameters)
        if not total:
            return 0.0
        sizes = {p.local for p in parameters} | {p.whole for p in parameters}
        if _is_flat(parameters, total):  # a flat buffer is saved in pieces of other sizes
            return sum(map(local_elements, tensors)) / total
        return sum(local_elements(t) for t in tensors if t.numel() in sizes) / total

    def _sizes(self) -> list[Size]:
        """Return the sizes of all parameters, each once. Between two steps the same."""
        known, count = self._known, len(self._buffers)
        if known is not None and known[0] == count:  # an optimizer may be gone
            return known[1]
        found: dict[int, Size] = {}
        for optimizer, buffers in list(self._buffers.items()):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            found.update({id(p): size(p) for p in parameters} or buffers)
        sizes = list(found.values())
        self._known = (count, sizes)
        return sizes


def size(parameter: torch.Tensor) -> Size:
    """Return how large a parameter is."""
    return Size(local_elements(parameter), parameter.numel(), parameter.dim())


def local_elements(tensor: torch.Tensor) -> int:
    """Return how many elements of a tensor are on this rank. A DTensor has its own shard only."""
    return int(getattr(tensor, "_local_tensor", tensor).numel())


def _is_flat(parameters: list[Size], total: int) -> bool:
    """Return whether the parameters are flat buffers, as of FSDP1 and ZeRO, and not those of a model."""
    flat = [p for p in parameters if p.dimensions == 1]
    if any(p.local > FLAT_SHARE * total for p in flat):
        return True
    return len(flat) == len(parameters) and total >= FLAT_MEAN * len(flat)


def tensors_in(saved: object) -> Iterator[torch.Tensor]:
    """Yield the tensors inside dictionaries, sequences, modules and optimizers, each once.

    Other objects are not opened, so that no code of the script runs.
    """
    import torch

    waiting, seen = [saved], set[int]()
    while waiting and len(seen) < LOOKED_AT:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, PLAIN):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, torch.nn.Module):
            waiting += [*item.parameters(), *item.buffers()]
        elif isinstance(item, torch.optim.Optimizer):
            waiting += [item.state, item.param_groups]
        elif isinstance(item, dict):
            waiting += _opened(dict.values(item))  # not a subclass's own method, here and below
        elif isinstance(item, list):
            waiting += _opened(list.__iter__(item))
        elif isinstance(item, tuple):
            waiting += _opened(tuple.__iter__(item))


def _opened(values: Iterable[object]) -> list[object]:
    """Return what may hold tensors. A list of millions of numbers costs no more than a short one."""
    first = list(islice(values, LOOKED_AT))
    if len(first) > ALIKE and all(isinstance(value, PLAIN) for value in first[:ALIKE]):
        return []
    return [value for value in first if not isinstance(value, PLAIN)]
