"""From what a script trains with to tensors and values, and back in place.

Modules, optimizers and anything else with ``state_dict`` / ``load_state_dict``, tensors, and plain numbers.
DTensors (tensor parallelism, FSDP2) are saved as the local shard with its place in the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain, count
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from pulsetrain.checkpoint.memory.layout import Entry, Layout, aligned
from pulsetrain.core.errors import CheckpointError

_PLAIN = (bool, int, float, str, type(None))
_STATE_TENSORS: Mapping[str, int] = MappingProxyType({"Adagrad": 1, "RMSprop": 1, "ASGD": 1})  # others: 2
_VALUE = "v"
_TENSORS: frozenset[Any] = frozenset({torch.Tensor, torch.nn.Parameter, DTensor})
_TOKENS: Mapping[type, Any] = MappingProxyType(
    {**dict.fromkeys(_PLAIN, _VALUE), **{t: t for t in (*_TENSORS, np.ndarray)}}
)
_SHAPE_AND_TYPE = attrgetter("shape", "dtype")


@dataclass
class Leaves:
    """The tensors of a state in tree order (of DTensors the local part), which of them only the optimizer
    changes, and the values.

    `form` is the nested structure without its contents: ("d", keys, forms) a mapping, ("l", forms) a list,
    ("u", forms) a tuple, "v" a value, the type of a tensor or array. It is made and compared at every save,
    so both are as cheap as Python allows.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    form: Any = None

    @cached_property
    def locals(self) -> list[torch.Tensor]:
        """The part of each tensor that this rank holds."""
        return [t if type(t) in _WHOLE else local(t) for t in self.tensors]

    @property
    def signature(self) -> tuple[Any, ...]:
        """Changes exactly when the layout does."""
        return self.form, list(map(_SHAPE_AND_TYPE, self.locals))

    @cached_property
    def tree(self) -> Any:
        """The form as a layout has it."""
        return _tree(self.form, count(), count())


_WHOLE = (torch.Tensor, torch.nn.Parameter)
_SINGLE = ({_VALUE}, {np.ndarray})


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of the tensor that this rank holds, sharing its memory."""
    if not isinstance(tensor, DTensor):
        return tensor
    part = tensor._local_tensor
    return part if type(part) is torch.Tensor else tensor.to_local()


def collect(state: Mapping[str, Any]) -> Leaves:
    """Walk the state. Raises `CheckpointError` naming the path of what cannot be saved."""
    leaves = Leaves()
    forms = tuple(_walk_root(key, value, leaves) for key, value in state.items())
    leaves.form = ("d", tuple(state), forms)
    return leaves


def _walk_root(key: str, value: Any, leaves: Leaves) -> Any:
    """One entry of the state. Forward and backward leave parameters and optimizer state alone: those are
    late."""
    before = len(leaves.tensors)
    if isinstance(value, torch.nn.Module):
        form = _walk(value.state_dict(keep_vars=True), (key,), leaves)
        leaves.late += [
            type(t) is torch.nn.Parameter or isinstance(t, torch.nn.Parameter)
            for t in leaves.tensors[before:]
        ]
        return form
    form = _walk(value.state_dict() if hasattr(value, "state_dict") else value, (key,), leaves)
    late = isinstance(value, torch.optim.Optimizer)
    leaves.late += [late] * (len(leaves.tensors) - before)
    return form


def layout_of(state: Mapping[str, Any], leaves: Leaves) -> Layout:
    """Table of tensors and tree; offsets are aligned and in tree order."""
    entries, offset = [], 0
    for name, tensor in zip(names_of(state, leaves.tree), leaves.tensors, strict=True):
        part = local(tensor)
        size = part.numel() * part.element_size()
        at, whole = _place(tensor)
        entries.append(
            Entry(
                name=name,
                dtype=str(part.dtype).removeprefix("torch."),
                shape=tuple(part.shape),
                offset=offset,
                bytes=size,
                at=at,
                whole=whole,
            )
        )
        offset = aligned(offset + size)
    return Layout(entries=tuple(entries), tree=leaves.tree)


def expected_bytes(state: Mapping[str, Any]) -> int:
    """About what a checkpoint of `state` will take once its optimizers have stepped; with room for layout."""
    leaves = collect(state)
    tensors = [local(t) for t in leaves.tensors]
    held = sum(aligned(t.numel() * t.element_size()) for t in tensors)
    coming = sum(_coming_bytes(v) for v in state.values() if isinstance(v, torch.optim.Optimizer))
    return held + coming + 2048 * (len(tensors) + 8)


def _coming_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state that an optimizer which has not stepped yet is about to make."""
    if optimizer.state:
        return 0
    kind = type(optimizer).__name__
    each = _STATE_TENSORS.get(kind, 2)
    if kind == "SGD":
        each = int(any(group.get("momentum") for group in optimizer.param_groups))
    parts = [local(p.detach()) for p in optimizer_parameters(optimizer) if p.requires_grad]
    return sum(each * (aligned(p.numel() * p.element_size())) + aligned(4) for p in parts)


def views(payload: memoryview, layout: Layout) -> list[torch.Tensor]:
    """One tensor for each entry, sharing the memory of `payload`."""
    return [_view(payload, entry) for entry in layout.entries]


def put_back(state: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Copy a rebuilt state into the live objects. Raises `CheckpointError` naming what does not fit."""
    missing = [key for key in state if key not in saved]
    if missing:
        raise CheckpointError(f"checkpoint has no {', '.join(missing)}; it has: {', '.join(saved)}")
    with torch.no_grad():
        for key, value in state.items():
            _put(key, value, saved[key], state)


def optimizer_names(state: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """For each optimizer of the state, its parameters' numbers -> their names in the state's modules.

    With one module they are the names in it, as torch.distributed.checkpoint has them.
    """
    modules = {key: m for key, m in state.items() if isinstance(m, torch.nn.Module)}
    fqn = {
        id(p): name if len(modules) == 1 else f"{key}.{name}"
        for key, module in modules.items()
        for name, p in module.named_parameters()
    }
    return {
        key: {i: fqn.get(id(p), str(i)) for i, p in enumerate(optimizer_parameters(optimizer))}
        for key, optimizer in state.items()
        if isinstance(optimizer, torch.optim.Optimizer)
    }


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Its parameters by number."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _walk(node: Any, path: tuple[Any, ...], out: Leaves) -> Any:
    """The form of a node; its leaves go into `out`."""
    token = _TOKENS.get(type(node))
    if token is not None:
        _take([node], token, out)
        return token
    if isinstance(node, Mapping):
        keys = tuple(node)
        if not set(map(type, keys)) <= {str, int}:
            _check_keys(keys, path)
        return ("d", keys, _walk_all(keys, list(node.values()), path, out))
    if isinstance(node, list | tuple):
        return ("u" if isinstance(node, tuple) else "l", _walk_all(range(len(node)), node, path, out))
    if isinstance(node, torch.Tensor | np.ndarray):
        _take([node], type(node), out)
        return type(node)
    if isinstance(node, _PLAIN):
        _take([node], _VALUE, out)
        return _VALUE
    where, kind = ".".join(map(str, path)), type(node).__name__
    raise CheckpointError(f"{where}: a {kind} cannot be saved; allowed: tensors, numbers, strings")


def _walk_all(
    keys: Sequence[Any], nodes: Sequence[Any], path: tuple[Any, ...], out: Leaves
) -> tuple[Any, ...]:
    """The forms of the children; those that are all tensors, all values, or tables of tensors go at once."""
    tokens = tuple(map(_TOKENS.get, map(type, nodes)))
    kinds = set(tokens)
    if kinds and (kinds <= _TENSORS or kinds in _SINGLE):
        _take(nodes, tokens[0], out)
        return tokens
    tables = _walk_tables(nodes, out) if kinds == {None} else None
    if tables is not None:
        return tables
    forms: list[Any] = []
    for key, node, token in zip(keys, nodes, tokens, strict=True):
        if token is _VALUE:
            out.values.append(node)
        forms.append(_VALUE if token is _VALUE else _walk(node, (*path, key), out))
    return tuple(forms)


def _walk_tables(nodes: Sequence[Any], out: Leaves) -> tuple[Any, ...] | None:
    """The forms of mappings that hold tensors alone, as an optimizer's state of each parameter does; None
    where they are not such."""
    if set(map(type, nodes)) != {dict}:
        return None
    keys, leaves = tuple(chain.from_iterable(nodes)), tuple(chain.from_iterable(map(dict.values, nodes)))
    kinds = tuple(map(type, leaves))
    if not set(kinds) <= _TENSORS or not set(map(type, keys)) <= {str, int}:
        return None
    out.tensors += leaves
    return _table_forms(tuple(map(len, nodes)), keys, kinds)


@lru_cache(maxsize=16)  # of the optimizers that are saved again and again
def _table_forms(sizes: Sequence[int], keys: Sequence[Any], kinds: Sequence[type]) -> tuple[Any, ...]:
    """Forms of mappings of `sizes` entries each, with the keys and types of all of them in order."""
    ends = tuple(accumulate(sizes))
    return tuple(("d", keys[e - n : e], kinds[e - n : e]) for e, n in zip(ends, sizes, strict=True))


def _take(leaves: Sequence[Any], token: Any, out: Leaves) -> None:
    """Leaves of one kind."""
    if token is _VALUE:
        out.values += leaves
    elif issubclass(token, np.ndarray):
        out.tensors += map(torch.from_numpy, leaves)
    else:
        out.tensors += leaves


def _check_keys(keys: Iterable[Any], path: tuple[Any, ...]) -> None:
    for key in keys:
        if not isinstance(key, str | int):
            where = ".".join(map(str, path))
            raise CheckpointError(f"{where}: key {key!r} cannot be saved; allowed: strings and integers")


def _tree(form: Any, tensors: Iterator[int], values: Iterator[int]) -> dict[str, Any]:
    """A form with its leaves numbered in order."""
    if form is _VALUE:
        return {"v": next(values)}
    if isinstance(form, type):
        return {"n" if issubclass(form, np.ndarray) else "t": next(tensors)}
    kind, *keys, forms = form
    children = [_tree(child, tensors, values) for child in forms]
    return {kind: [list(pair) for pair in zip(keys[0], children, strict=True)] if keys else children}


def names_of(state: Mapping[str, Any], tree: Mapping[str, Any]) -> list[str]:
    """A dotted name for each tensor of a tree, in order; it does not depend on the parallel shape."""
    aliases = optimizer_names(state)
    names: list[str] = []
    for key, node in tree["d"]:
        _name_leaves(node, (key,), aliases.get(key, {}), names)
    return names


def _name_leaves(
    node: Mapping[str, Any], path: tuple[Any, ...], alias: Mapping[int, str], out: list[str]
) -> None:
    """In an optimizer, a parameter's number is replaced by the parameter's name."""
    ((kind, body),) = node.items()
    if kind in "tn":
        renamed = len(path) > 2 and path[1] == "state" and path[2] in alias
        parts = (path[0], "state", alias[path[2]], *path[3:]) if renamed else path
        out.append(".".join(map(str, parts)))
    elif kind != "v":
        for key, child in body if kind == "d" else enumerate(body):
            _name_leaves(child, (*path, key), alias, out)


def _place(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a DTensor's shard begins, and the global shape; empty for a tensor that is whole."""
    if not isinstance(tensor, DTensor):
        return (), ()
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != tuple(local(tensor).shape):
        raise CheckpointError(
            f"shard of shape {tuple(local(tensor).shape)} where {tuple(shape)} was expected"
        )
    return tuple(start), tuple(tensor.shape)


def _view(payload: memoryview, entry: Entry) -> torch.Tensor:
    dtype = getattr(torch, entry.dtype)
    if entry.bytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    raw = torch.frombuffer(payload, dtype=torch.uint8, count=entry.bytes, offset=entry.offset)
    return raw.view(dtype).view(entry.shape)


def _put(key: str, value: Any, saved: Any, state: Mapping[str, Any]) -> None:
    if isinstance(value, torch.nn.Module):
        _put_module(key, value, saved)
    elif isinstance(value, torch.optim.Optimizer):
        _put_optimizer(key, value, saved)
    elif isinstance(value, torch.Tensor):
        _copy(key, value, saved)
    elif hasattr(value, "load_state_dict"):
        value.load_state_dict(_owned(saved))
    elif isinstance(state, MutableMapping):
        state[key] = _owned(saved)


def _put_module(key: str, module: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    """Tensors in place; extra state through the module's own loader."""
    live = module.state_dict()
    wrong = sorted(set(live) ^ set(saved))
    if wrong:
        raise CheckpointError(f"{key}: model and checkpoint differ in {', '.join(wrong[:5])}")
    extra = False
    for name, tensor in live.items():
        if isinstance(tensor, torch.Tensor):
            _copy(f"{key}.{name}", tensor, saved[name])
        else:
            extra = True
    if extra:
        module.load_state_dict({n: t if isinstance(t, torch.Tensor) else saved[n] for n, t in live.items()})


def _put_optimizer(key: str, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Through its own loader, with shards wrapped as their parameter is, and element types kept exactly.

    State that is there already is filled in place, which spares new memory.
    """
    parameters = optimizer_parameters(optimizer)
    state = {
        index: {
            name: _fill(optimizer.state.get(parameters[index], {}).get(name), v, parameters[index])
            for name, v in entry.items()
        }
        for index, entry in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})
    for index, entry in state.items():
        kept = optimizer.state[parameters[index]]
        for name, v in entry.items():
            if isinstance(v, torch.Tensor) and kept[name].dtype != v.dtype:
                kept[name] = v.to(kept[name].device)


def _fill(live: Any, saved: Any, parameter: torch.Tensor) -> Any:
    if isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor):
        part = local(live.detach())
        if (part.shape, part.dtype) == (saved.shape, saved.dtype):
            part.copy_(saved)
            return live
    return _like(parameter, saved)


def _like(parameter: torch.Tensor, saved: Any) -> Any:
    """An owned copy of a state tensor; a shard of a DTensor parameter becomes one again."""
    value = _owned(saved)
    if (
        isinstance(parameter, DTensor)
        and isinstance(value, torch.Tensor)
        and value.dim()
        and value.shape == local(parameter.detach()).shape
    ):
        value = value.to(local(parameter.detach()).device)
        return DTensor.from_local(
            value,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    return value


def _copy(name: str, live: torch.Tensor, saved: Any) -> None:
    part = local(live.detach())
    if not isinstance(saved, torch.Tensor) or (part.shape, part.dtype) != (saved.shape, saved.dtype):
        raise CheckpointError(
            f"{name}: {tuple(part.shape)} {part.dtype} does not fit what was saved: {_say(saved)}"
        )
    part.copy_(saved)


def _say(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)


def _owned(value: Any) -> Any:
    """A deep copy that shares no memory with the arena."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {k: _owned(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_owned(v) for v in value)
    return value
