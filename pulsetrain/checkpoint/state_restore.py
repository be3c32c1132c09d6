"""Reads a saved state and copies it back into the live objects of a training script."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pulsetrain.checkpoint import fsdp1
from pulsetrain.checkpoint.in_place import InPlace, copied, memory, typed_like
from pulsetrain.checkpoint.memory.arena import Arena
from pulsetrain.checkpoint.memory.layout import Entry, Layout, Nested, decode, decode_values, rebuild
from pulsetrain.checkpoint.memory.slots import SlotInfo, payload_offset
from pulsetrain.checkpoint.optimizers import optimizer_parameters
from pulsetrain.checkpoint.sharding import local, sharded_like
from pulsetrain.core.errors import CheckpointError
from pulsetrain.elastic.element_types import keep_types, settings_like

_EXTRA = "_extra_state"  # the last part of the name of what a module's `get_extra_state` returns


def read_state(arena: Arena, info: SlotInfo) -> dict[str, Nested]:
    """The saved state as nested mappings of tensors over the arena's memory."""
    data = arena.view(info)
    layout = decode(data[: info.layout_bytes])
    values = decode_values(data[info.layout_bytes : info.layout_bytes + info.values_bytes])
    payload = data[payload_offset(info.layout_bytes, info.values_bytes) :]
    tree: dict[str, Nested] = rebuild(layout.tree, views(payload, layout), values)
    return tree


def views(payload: memoryview, layout: Layout) -> list[torch.Tensor]:
    """One tensor for each entry, sharing the memory of `payload`."""
    return [_view(payload, entry) for entry in layout.entries]


def put_back(state: Mapping[str, object], saved: Mapping[str, Nested]) -> None:
    """Copy a rebuilt state into the live objects. Raises `CheckpointError` that names what does not fit."""
    missing = [key for key in state if key not in saved]
    if missing:
        raise CheckpointError(f"checkpoint has no {', '.join(missing)}; it has: {', '.join(saved)}")
    in_place = InPlace(state)
    with torch.no_grad():
        for key, value in state.items():
            _put(key, value, saved[key], state, in_place)


def _view(payload: memoryview, entry: Entry) -> torch.Tensor:
    dtype = getattr(torch, entry.dtype)
    if entry.bytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    raw = torch.frombuffer(payload, dtype=torch.uint8, count=entry.bytes, offset=entry.offset)
    return raw.view(dtype).view(entry.shape)


def _put(key: str, value: object, saved: Nested, state: Mapping[str, object], in_place: InPlace) -> None:
    if isinstance(value, torch.nn.Module):
        _put_module(key, value, saved)
    elif isinstance(value, torch.optim.Optimizer):
        _put_optimizer(key, value, saved)
    elif isinstance(value, torch.Tensor):
        _copy(key, value, saved)
    elif hasattr(value, "load_state_dict"):
        load_object(value, copied(saved))
    elif isinstance(state, MutableMapping):
        state[key] = in_place.fill(value, saved)


def load_object(value: Any, saved: Nested) -> None:
    """Give an object what it is to load, with mappings and tuples of the types that its state has now."""
    live = None
    with contextlib.suppress(Exception):  # one that has no state before it is loaded
        live = value.state_dict()
    value.load_state_dict(typed_like(live, saved))


def _put_module(key: str, module: torch.nn.Module, saved: Mapping[str, Nested]) -> None:
    """Fill tensors in place. Copies, and extra state, go through the module's own loader."""
    live = module.state_dict()
    wrong = sorted(set(live) ^ set(saved))
    if wrong:
        raise CheckpointError(f"{key}: model and checkpoint differ in {', '.join(wrong[:5])}")
    extra = extra_names(live)
    copies = copied_names(module, live)
    for name, tensor in live.items():
        if name not in extra:
            _copy(f"{key}.{name}", tensor, saved[name])
    if extra or copies:
        load_by_itself(module, live, {name: copied(saved[name]) for name in extra})


def extra_names(entries: Mapping[str, object]) -> list[str]:
    """Entries of a module's state that are no parameters and no buffers. They may have tensors too."""
    return [n for n, v in entries.items() if n.endswith(_EXTRA) or not isinstance(v, torch.Tensor)]


def copied_names(module: torch.nn.Module, live: Mapping[str, object]) -> list[str]:
    """Entries of a module's state that are copies, as all of FSDP1 are. To fill them changes nothing.

    `live` is what its `state_dict` returned. That is called once more only where another module has what is
    no parameter and no buffer: what is in the same memory again is no copy.
    """
    if fsdp1.wrapped(module):  # ranks decide alike, and need no second copy of the whole model
        return list(live)
    own = {memory(t) for t in (*module.parameters(), *module.buffers())}
    extra = set(extra_names(live))
    tensors = {n: t for n, t in live.items() if isinstance(t, torch.Tensor) and n not in extra}
    others = {name: where for name, t in tensors.items() if (where := memory(t)) and where not in own}
    again = module.state_dict() if others else {}
    return [name for name, where in others.items() if memory(again[name]) != where]


def load_by_itself(module: torch.nn.Module, live: Mapping[str, object], extra: Mapping[str, Nested]) -> None:
    """Give a module what it has to load by itself. `live` is what its tensors are to be, or are already."""
    module.load_state_dict({**live, **extra})


def _put_optimizer(key: str, optimizer: torch.optim.Optimizer, saved: Mapping[str, Nested]) -> None:
    """Use its own loader, with shards wrapped like their parameter and element types kept exactly.

    State that is there already is filled in place, so that no new memory is needed.
    """
    parameters = optimizer_parameters(optimizer)
    state = {
        index: {
            name: _fill(optimizer.state.get(parameters[index], {}).get(name), v, parameters[index])
            for name, v in entry.items()
        }
        for index, entry in saved["state"].items()
        if isinstance(index, int)
    }
    others = {name: copied(entry) for name, entry in saved["state"].items() if not isinstance(name, int)}
    groups = saved["param_groups"]
    if len(groups) == len(optimizer.param_groups):  # else its loader says so
        both = zip(optimizer.param_groups, groups, strict=True)
        groups = [settings_like(live, old) for live, old in both]
    optimizer.load_state_dict({**saved, "state": {**state, **others}, "param_groups": groups})
    keep_types(optimizer, parameters, state)


def _fill(live: object, saved: Nested, parameter: torch.Tensor) -> Nested:
    if isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor):
        part = local(live.detach())
        if (part.shape, part.dtype) == (saved.shape, saved.dtype):
            part.copy_(saved)
            return live
    return _like(parameter, saved)


def _like(parameter: torch.Tensor, saved: Nested) -> Nested:
    """A copy of a parameter's state. A shard of a DTensor parameter becomes a DTensor again."""
    if isinstance(saved, Mapping):
        return {name: _like(parameter, one) for name, one in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(_like(parameter, one) for one in saved)
    value = copied(saved)
    if (
        isinstance(parameter, DTensor)
        and isinstance(value, torch.Tensor)
        and value.dim()
        and value.shape == local(parameter.detach()).shape
    ):
        return sharded_like(parameter, value.to(local(parameter.detach()).device))
    return value


def _copy(name: str, live: torch.Tensor, saved: Nested) -> None:
    part = local(live.detach())
    if not isinstance(saved, torch.Tensor) or (part.shape, part.dtype) != (saved.shape, saved.dtype):
        raise CheckpointError(
            f"{name}: {tuple(part.shape)} {part.dtype} does not fit what was saved: {_described(saved)}"
        )
    part.copy_(saved)


def _described(value: object) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)
