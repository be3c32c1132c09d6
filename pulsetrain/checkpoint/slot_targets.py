"""Where in a slot each tensor of a state is copied to. What is the same from save to save is kept."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import TypeAlias

import torch

from pulsetrain.checkpoint.copying import Copier, Pairs, Tensors
from pulsetrain.checkpoint.memory.arena import SlotWriter
from pulsetrain.checkpoint.memory.layout import Layout
from pulsetrain.checkpoint.memory.slots import payload_offset
from pulsetrain.checkpoint.optimizers import optimizer_parameters
from pulsetrain.checkpoint.state_restore import views
from pulsetrain.checkpoint.statetree import Form, Leaves, layout_of

_Signature: TypeAlias = tuple[Form, list[object], list[list[int | None]]]


class LayoutCache:
    """The layout of a state and its JSON, kept while the structure of the state stays the same."""

    def __init__(self) -> None:
        self._last: tuple[_Signature, bytes, Layout] | None = None

    def of(self, state: Mapping[str, object], leaves: Leaves) -> tuple[bytes, Layout]:
        """JSON and layout of the state that `leaves` were collected from."""
        signature = (*leaves.signature, _optimized(state, leaves))
        if self._last is None or self._last[0] != signature:
            layout = layout_of(state, leaves)
            self._last = (signature, layout.encode(), layout)
        return self._last[1], self._last[2]


def _optimized(state: Mapping[str, object], leaves: Leaves) -> list[list[int | None]]:
    """Which tensors each optimizer changes: its state has their names. Another one may have as many."""
    optimizers = [value for value in state.values() if isinstance(value, torch.optim.Optimizer)]
    numbers = {id(tensor): number for number, tensor in enumerate(leaves.tensors)} if optimizers else {}
    return [[numbers.get(id(p)) for p in optimizer_parameters(optimizer)] for optimizer in optimizers]


@dataclass(frozen=True)
class _Targets:
    """Tensors over one slot's memory, and what they were made for."""

    region: mmap.mmap
    layout: Layout
    offset: int
    optimizer_owned: list[bool]
    volatile_tensors: Tensors
    optimizer_tensors: Tensors

    def fit(self, region: mmap.mmap, layout: Layout, offset: int, optimizer_owned: list[bool]) -> bool:
        same = self.region is region and self.layout is layout and self.offset == offset
        return same and self.optimizer_owned == optimizer_owned


class TargetCache:
    """The targets of each slot, kept while its memory and the layout stay the same."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._by_slot: dict[int, _Targets] = {}

    def pairs(self, writing: SlotWriter, leaves: Leaves, layout: Layout) -> Pairs:
        """Each local tensor of the state with its target in the slot."""
        header, owned = writing.header, leaves.optimizer_owned
        targets = self._by_slot.get(writing.slot)
        offset = payload_offset(header.layout_bytes, header.values_bytes)
        if targets is None or not targets.fit(writing.region, layout, offset, owned):
            tensors = views(writing.bytes[offset:], layout)
            targets = _Targets(writing.region, layout, offset, owned, *_split(tensors, owned))
            self._by_slot[writing.slot] = targets
            self._copier.adopt(writing.region)
        volatile, optimizer_owned = _split(leaves.locals, owned)
        return Pairs((volatile, targets.volatile_tensors), (optimizer_owned, targets.optimizer_tensors))


def _split(tensors: Tensors, optimizer_owned: list[bool]) -> tuple[Tensors, Tensors]:
    """The tensors that forward and backward may change, and those that only the optimizer changes."""
    return list(compress(tensors, map(not_, optimizer_owned))), list(compress(tensors, optimizer_owned))
