"""Reads tensors of a saved state, whatever ranks it was sharded over, as a script's objects hold them now."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch.distributed.tensor import DTensor

from pulsetrain.checkpoint.memory.layout import Entry, Nested
from pulsetrain.checkpoint.sharding import local, sharded_like
from pulsetrain.checkpoint.statetree import collect, layout_of
from pulsetrain.core.errors import CheckpointError
from pulsetrain.elastic.saved_optimizer import ArrayName, TensorName

Make = Callable[[TensorName], torch.Tensor]
"""The tensor for a name."""


class Kind(Protocol):
    """Element type and global shape of a saved tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class SavedState(Protocol):
    """A saved state, whatever ranks it was sharded over."""

    @property
    def step(self) -> int: ...
    @property
    def tensors(self) -> Mapping[str, Kind]: ...
    def read(self, name: str, start: tuple[int, ...] = ..., size: tuple[int, ...] | None = ...) -> bytes:
        """The raw elements of a part, by default of the whole tensor."""
        ...


def fill(saved: SavedState, part: Mapping[str, object]) -> None:
    """Fill every tensor of `part` in place. Raises `CheckpointError` where one does not fit."""
    for entry, tensor in _tensors(part):
        _read_into(saved, entry, local(tensor.detach()))


def fill_as(saved: SavedState, name: str, tensor: torch.Tensor) -> None:
    """Fill a tensor, or a part of one, with what was saved as `name`. Raises as `fill` does."""
    ((entry, _),) = _tensors({"x": tensor})
    _read_into(saved, dataclasses.replace(entry, name=name), local(tensor.detach()))


def with_tensors(node: Nested, make: Make) -> Nested:
    """A copy of a state with what `make` gives in place of the names."""
    if isinstance(node, TensorName):
        return make(node).numpy() if isinstance(node, ArrayName) else make(node)
    if isinstance(node, Mapping):
        return {key: with_tensors(child, make) for key, child in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(with_tensors(child, make) for child in node)
    return node


def like_parameter(saved: SavedState, parameter: torch.Tensor) -> Make:
    """State of a parameter. It is sharded like that where it has its global shape.

    Step counters are on the CPU, the rest where the parameter is.
    """

    def make(name: TensorName) -> torch.Tensor:
        stored = kind_of(saved, name)
        device = parameter.device if stored.shape else torch.device("cpu")
        return _read(saved, name, parameter, device)

    return make


def live_tensors(part: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """The tensors of a part of a state by their names. None where it cannot be saved before it is loaded."""
    with contextlib.suppress(CheckpointError):
        return {entry.name: tensor for entry, tensor in _tensors(part)}
    return {}


def like_live(saved: SavedState, live: Mapping[str, torch.Tensor]) -> Make:
    """Tensors are sharded like those of the same name and shape in `live`, else whole on the CPU."""
    return lambda name: _read(saved, name, live.get(name), torch.device("cpu"))


def kind_of(saved: SavedState, name: str) -> Kind:
    """Its type and shape. Raises `CheckpointError` where there is none of that name."""
    kind = saved.tensors.get(name)
    if kind is None:
        raise CheckpointError(f"checkpoint of step {saved.step} has no tensor {name}")
    return kind


def _tensors(part: Mapping[str, object]) -> list[tuple[Entry, torch.Tensor]]:
    leaves = collect(part)
    return list(zip(layout_of(part, leaves).entries, leaves.tensors, strict=True))


def _read(saved: SavedState, name: str, like: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    stored = kind_of(saved, name)
    dtype = getattr(torch, stored.dtype)
    if isinstance(like, DTensor) and stored.shape == tuple(like.shape):
        tensor: torch.Tensor = sharded_like(like, torch.empty_like(local(like.detach()), dtype=dtype))
    else:
        tensor = torch.empty(stored.shape, dtype=dtype, device=device)
    fill_as(saved, name, tensor)
    return tensor


def _read_into(saved: SavedState, entry: Entry, target: torch.Tensor) -> None:
    stored = kind_of(saved, entry.name)
    start, size, whole = entry.box
    if (stored.dtype, stored.shape) != (entry.dtype, whole):
        raise CheckpointError(
            f"{entry.name}: saved as {stored.dtype} {stored.shape}, wanted as {entry.dtype} {whole}"
        )
    data = saved.read(entry.name, start, size)
    if data:
        target.copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))
