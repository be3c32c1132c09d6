"""The state of a rank whose parameters are split by units, in parts that say where they lie in the whole.

A rank of a larger replica holds units that are no neighbours, so a tensor has several parts. A checkpoint has
each of them under the tensor's name. Ranks of a world with other degrees put theirs together from them. So do
jobs that split the same tensors as DTensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pulsetrain.core.errors import CheckpointError, UsageError
from pulsetrain.elastic.element_types import keep_types, settings_like
from pulsetrain.elastic.gradient_sync import ParameterLayout
from pulsetrain.elastic.saved_optimizer import SavedOptimizer, TensorName

PART = "@"
"""A key of a state that begins with it and a number is a part of the tensor that the mapping stands for."""
OPTIMIZER_OWNED = "optimizer_owned"
"""An entry of a state with this attribute true has only tensors that the optimizer's step changes."""
_BOX = "_pulsetrain_box"

Shape = tuple[int, ...]


def is_part(key: object) -> bool:
    """Whether the key of a state stands for a part of a tensor."""
    return isinstance(key, str) and key.startswith(PART) and key[len(PART) :].isdecimal()


def box_of(tensor: torch.Tensor) -> tuple[Shape, Shape]:
    """Where a part begins, and the shape of the whole. Both are empty for a tensor that is no part."""
    box: tuple[Shape, Shape] = getattr(tensor, _BOX, ((), ()))
    return box


class Kind(Protocol):
    """Element type and global shape of a saved tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Shape: ...


Read = Callable[[str, torch.Tensor], None]
"""Fills a tensor, or a part of one, with what was saved under a name."""


@dataclass(frozen=True, kw_only=True)
class _Split:
    """How this rank holds a parameter: `length` rows from `inside` of its own, at `start` of the whole."""

    dim: int
    rows: int
    runs: tuple[tuple[int, int, int], ...]
    """(inside, start, length)"""

    @classmethod
    def of(cls, layout: ParameterLayout, local_rank: int) -> _Split | None:
        """None for a parameter that every rank has whole."""
        mapping, size = layout.mapping, layout.unit_size
        if mapping is None:
            return None
        runs: list[tuple[int, int, int]] = []
        for place, unit in enumerate(mapping.compute[local_rank]):
            if runs and runs[-1][1] + runs[-1][2] == unit * size:
                inside, start, length = runs.pop()
                runs.append((inside, start, length + size))
            else:
                runs.append((place * size, unit * size, size))
        return cls(dim=layout.dim, rows=sum(map(len, mapping.reduced)) * size, runs=tuple(runs))

    def whole(self, tensor: torch.Tensor) -> Shape:
        """The global shape of what `tensor` is this rank's share of."""
        shape = list(tensor.shape)
        shape[self.dim] = self.rows
        return tuple(shape)

    def parts(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of a tensor, sharing its memory."""
        found = {}
        for inside, start, length in self.runs:
            part = tensor.detach().narrow(self.dim, inside, length)
            at = tuple(start if axis == self.dim else 0 for axis in range(tensor.dim()))
            setattr(part, _BOX, (at, self.whole(tensor)))
            found[f"{PART}{start}"] = part
        return found


class _Splits:
    """The parameters of this rank by name, each with its parts."""

    def __init__(self, layouts: Mapping[str, ParameterLayout], local_rank: int) -> None:
        self._of = {
            name: (layout.parameter, _Split.of(layout, local_rank)) for name, layout in layouts.items()
        }

    def __iter__(self) -> Iterator[tuple[str, torch.nn.Parameter, _Split | None]]:
        return ((name, parameter, split) for name, (parameter, split) in self._of.items())

    def saved(self, name: str, tensor: torch.Tensor) -> object:
        """What is saved of a tensor that may be shaped like the parameter `name`."""
        parameter, split = self._of[name]
        if split is None or tensor.shape != parameter.shape:
            return tensor
        return split.parts(tensor)


class SplitParameters:
    """The parameters of this rank, for `pulsetrain.Checkpointer`. See `split_state`."""

    optimizer_owned = True

    def __init__(self, splits: _Splits) -> None:
        self._splits = splits

    def state_dict(self) -> dict[str, object]:
        """Each parameter by its name, whole or in parts."""
        return {name: self._splits.saved(name, parameter.detach()) for name, parameter, _ in self._splits}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take what this rank saved at the same degrees. Raises `CheckpointError`."""
        with torch.no_grad():
            for name, live in self.state_dict().items():
                _copy(name, live, saved.get(name))

    def take_parts(self, kinds: Mapping[str, Kind], read: Read, saved: object) -> None:
        """Read the parts that this rank holds now, whoever saved them."""
        for name, live in self.state_dict().items():
            for part in _leaves(live):
                read(name, part)


class SplitOptimizer:
    """The state of this rank's optimizer, for `pulsetrain.Checkpointer`. See `split_state`."""

    optimizer_owned = True

    def __init__(self, optimizer: torch.optim.Optimizer, splits: _Splits) -> None:
        self._optimizer, self._splits = optimizer, splits
        names = {id(parameter): name for name, parameter, _ in splits}
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        missing = [p for p in self._parameters if id(p) not in names]
        if missing:
            raise UsageError(f"{len(missing)} parameters of the optimizer have no layout: allowed: none")
        self._names = [names[id(p)] for p in self._parameters]

    def state_dict(self) -> dict[str, object]:
        """State by the parameter's name, whole or in parts, and settings."""
        live = self._optimizer.state_dict()
        state = {
            self._names[number]: {
                kind: self._splits.saved(self._names[number], value)
                if isinstance(value, torch.Tensor)
                else value
                for kind, value in kinds.items()
            }
            for number, kinds in live["state"].items()
        }
        return {"state": state, "param_groups": live["param_groups"]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take what this rank saved at the same degrees. Raises `CheckpointError`."""
        state = {}
        for number, name in enumerate(self._names):
            kinds = saved["state"].get(name, {})
            if kinds:
                state[number] = {kind: self._joined(number, kind, value) for kind, value in kinds.items()}
        self._take(state, saved["param_groups"])

    def take_parts(self, kinds: Mapping[str, Kind], read: Read, saved: SavedOptimizer) -> None:
        """Read the parts that this rank holds now, whoever saved them. Settings come from one of them.

        Raises `CheckpointError` where the state of a parameter was not saved.
        """
        both = zip(self._names, self._parameters, strict=True)
        saved.check_missing([n for n, p in both if p.requires_grad and not saved.name_among([n])])
        state = {
            number: self._read(number, kinds, read, saved.state[name])
            for number, name in enumerate(self._names)
            if name in saved.state
        }
        self._take(state, _settings(kinds, read, saved.groups))

    def _read(self, number: int, kinds: Mapping[str, Kind], read: Read, saved: Any) -> Any:
        """State of one parameter, with its tensors where their names are."""
        if isinstance(saved, TensorName):
            tensor = self._empty(number, kinds[saved])
            for part in _leaves(self._splits.saved(self._names[number], tensor)):
                read(saved, part)
            return tensor
        if isinstance(saved, Mapping):
            return {key: self._read(number, kinds, read, value) for key, value in saved.items()}
        if isinstance(saved, list | tuple):
            return type(saved)(self._read(number, kinds, read, value) for value in saved)
        return saved

    def _empty(self, number: int, kind: Kind) -> torch.Tensor:
        """Room for a state tensor: as much as this rank has of the parameter, else the whole."""
        parameter, dtype = self._parameters[number], getattr(torch, kind.dtype)
        live = self._splits.saved(self._names[number], parameter.detach())
        wholes = {box_of(part)[1] or tuple(part.shape) for part in _leaves(live)}
        if tuple(kind.shape) in wholes or (kind.shape and not wholes):
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        return torch.empty(kind.shape, dtype=dtype)

    def _joined(self, number: int, kind: str, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        parameter = self._parameters[number]
        dtype = next((part.dtype for part in value.values()), parameter.dtype)
        whole = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        _copy(f"{self._names[number]}.{kind}", self._splits.saved(self._names[number], whole), value)
        return whole

    def _take(self, state: Mapping[int, Any], saved_groups: Sequence[Mapping[str, Any]]) -> None:
        live = self._optimizer.state_dict()["param_groups"]
        if len(live) != len(saved_groups):
            raise CheckpointError(f"saved with {len(saved_groups)} parameter groups, has {len(live)}")
        both = zip(live, saved_groups, strict=True)
        groups = [{**now, **settings_like(now, old), "params": now["params"]} for now, old in both]
        self._optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
        keep_types(self._optimizer, self._parameters, state)


def split_state(
    layouts: Mapping[str, ParameterLayout], optimizer: torch.optim.Optimizer, local_rank: int
) -> dict[str, object]:
    """What a rank of a replica of any degree gives to `pulsetrain.Checkpointer`.

    `layouts` names every parameter, by the same name on all ranks. `local_rank` counts within the replica.
    Raises `UsageError` where the optimizer has another parameter.
    """
    splits = _Splits(layouts, local_rank)
    return {"model": SplitParameters(splits), "optimizer": SplitOptimizer(optimizer, splits)}


def _settings(kinds: Mapping[str, Kind], read: Read, saved: Any) -> Any:
    """Settings of parameter groups, with whole tensors where their names are, such as a learning rate."""
    if isinstance(saved, TensorName):
        tensor = torch.empty(kinds[saved].shape, dtype=getattr(torch, kinds[saved].dtype))
        read(saved, tensor)
        return tensor
    if isinstance(saved, Mapping):
        return {key: _settings(kinds, read, value) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(_settings(kinds, read, value) for value in saved)
    return saved


def _leaves(value: object) -> list[torch.Tensor]:
    if isinstance(value, dict):
        return list(value.values())
    return [value] if isinstance(value, torch.Tensor) else []


def _copy(name: str, live: object, saved: object) -> None:
    """Fill a tensor or its parts. Raises `CheckpointError` where others were saved."""
    of_live: Mapping[str, Any] = live if isinstance(live, dict) else {"": live}
    of_saved: Mapping[str, Any] = saved if isinstance(saved, Mapping) else {"": saved}
    if of_live.keys() != of_saved.keys():
        raise CheckpointError(f"{name}: saved at other degrees of tensor parallelism")
    for key, part in of_live.items():
        source = of_saved[key]
        if not isinstance(source, torch.Tensor) or source.shape != part.shape:
            raise CheckpointError(f"{name}{key}: {tuple(part.shape)} does not fit what was saved")
        part.copy_(source)
