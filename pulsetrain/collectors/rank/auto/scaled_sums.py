"""The loss behind what a script computes of scaled losses: their sum, or one of them divided.

Whatever is computed of them by such operations has their scale. So one of them, and what it was before it
was scaled, undo the scale of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from pulsetrain.collectors.rank.numbers import Number, number

_OPERATIONS = (
    *("Add", "Sub", "Div", "Mul", "Neg", "Mean", "Sum", "Stack", "Cat", "View", "ReshapeAlias", "ToCopy"),
    *("Select", "Squeeze", "Unsqueeze", "Unbind", "Clone"),
)
LINEAR = tuple(f"{name}Backward" for name in _OPERATIONS)
"""Nodes of the autograd graph through which a scale passes. Those of torch end in a number."""
MOST_NODES = 64
"""of a graph that are looked at"""
MOST_BYTES = 1024
"""of a loss's memory: it may be an element of something large, which must not be kept alive"""


class ScaledSums:
    """Remembers the last `most` scaled losses by the numbers of their nodes, and holds no graph."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # scaled, and what it was before

    def remember(self, scaled: torch.Tensor, unscaled: torch.Tensor) -> None:
        """`scaled` was made from `unscaled`, each of one element."""
        node = scaled.grad_fn
        if node is None or any(t.untyped_storage().nbytes() > MOST_BYTES for t in (scaled, unscaled)):
            return
        self._known[node._sequence_nr()] = scaled.detach(), unscaled.detach()
        if len(self._known) > self._most:
            self._known.pop(next(iter(self._known)), None)  # the oldest

    def unscaled(self, root: torch.Tensor) -> Number | None:
        """Return the loss behind `root`, None where no scaled one is found in it."""
        found = next(self._inside(root), None) if self._known else None
        if found is None:
            return None
        scaled, unscaled = found
        return _Quotient(number(root.reshape(())), number(scaled.reshape(())), number(unscaled.reshape(())))

    def _inside(self, root: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        waiting = [root.grad_fn]  # grows behind the one that is looked at
        for node in waiting:
            if node is None:
                continue
            known = self._known.get(node._sequence_nr())
            if known is not None:
                yield known
            if node.name().startswith(LINEAR) and len(waiting) < MOST_NODES:
                waiting += [before for before, _ in node.next_functions]


class _Quotient:
    """`root` without the scale. Where none can be told, as of a loss of 0, it is `root` itself."""

    __slots__ = ("_parts",)

    def __init__(self, root: Number, scaled: Number, unscaled: Number) -> None:
        self._parts = root, scaled, unscaled

    def ready(self) -> bool:
        """Return whether all have arrived."""
        return all(part.ready() for part in self._parts)

    def value(self) -> float:
        """Return it. Only valid once `ready`."""
        root, scaled, unscaled = (part.value() for part in self._parts)
        return root * (unscaled / scaled) if scaled and math.isfinite(scaled) else root
