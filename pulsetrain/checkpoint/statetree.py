"""Turns what a script trains with into tensors, values and the layout that describes them.

Modules, optimizers, anything else with ``state_dict`` and ``load_state_dict``, tensors, plain numbers and
strings. Of a DTensor, the local shard is saved with its position in the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain, count
from operator import attrgetter
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from pulsetrain.checkpoint import fsdp1
from pulsetrain.checkpoint.memory.layout import Entry, Layout, Nested, Plain, TreeNode, aligned
from pulsetrain.checkpoint.optimizers import future_state_bytes, optimizer_names
from pulsetrain.checkpoint.sharding import local, position
from pulsetrain.core.errors import CheckpointError
from pulsetrain.elastic.split_state import OPTIMIZER_OWNED, is_part

Form: TypeAlias = object
"""The nested structure of a state without its contents: ("d", keys, forms) is a mapping, ("l", forms) a list,
("u", forms) a tuple, "v" a value, and a type is a tensor or an array of that type."""
Key: TypeAlias = str | int
Path: TypeAlias = tuple[Nested, ...]

_PLAIN = (bool, int, float, str, type(None))
_VALUE = "v"
_TENSORS: frozenset[object] = frozenset({torch.Tensor, torch.nn.Parameter, DTensor})
_TOKENS: Mapping[type, Form] = MappingProxyType(
    {
        **dict.fromkeys(_PLAIN, _VALUE),
        **{t: t for t in (torch.Tensor, torch.nn.Parameter, DTensor, np.ndarray)},
    }
)
_SHAPE_AND_TYPE = attrgetter("shape", "dtype")
_WHOLE = (torch.Tensor, torch.nn.Parameter)
_SINGLE = ({_VALUE}, {np.ndarray})


@dataclass
class Leaves:
    """The tensors of a state in tree order, and its values.

    `optimizer_owned` says of each tensor whether only the optimizer changes it. `form` is made and compared
    at every save, so both are as cheap as Python allows.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    optimizer_owned: list[bool] = field(default_factory=list)
    values: list[Plain] = field(default_factory=list)
    form: Form = None

    @cached_property
    def locals(self) -> list[torch.Tensor]:
        """The part of each tensor that this rank holds."""
        return [t if type(t) in _WHOLE else local(t) for t in self.tensors]

    @property
    def signature(self) -> tuple[Form, list[object]]:
        """Changes exactly when the layout does."""
        return self.form, list(map(_SHAPE_AND_TYPE, self.locals))

    @cached_property
    def tree(self) -> TreeNode:
        """The form as a layout has it."""
        return _tree(self.form, count(), count())


def collect(state: Mapping[str, object]) -> Leaves:
    """Walk the state. Raises `CheckpointError` with the path of what cannot be saved."""
    leaves = Leaves()
    forms = tuple(_walk_entry(key, value, leaves) for key, value in state.items())
    leaves.form = ("d", tuple(state), forms)
    return leaves


def layout_of(state: Mapping[str, object], leaves: Leaves) -> Layout:
    """The table of tensors and the tree. Offsets are aligned and in tree order."""
    entries, offset = [], 0
    for name, tensor in zip(names_of(state, leaves.tree), leaves.tensors, strict=True):
        part = local(tensor)
        _check_content(name, part)
        size = part.numel() * part.element_size()
        at, whole = position(tensor)
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
    without_tensors = tuple(_without_tensors(state, leaves.tree))
    return Layout(entries=tuple(entries), tree=leaves.tree, without_tensors=without_tensors)


def _check_content(name: str, part: torch.Tensor) -> None:
    """Raise `CheckpointError` for a tensor that no copy into plain memory exists of."""
    kinds = {
        "without content (device meta)": part.is_meta,
        "quantized": part.is_quantized,
        "nested": part.is_nested,
        "sparse": part.layout is not torch.strided,
    }
    kind = next((kind for kind, applies in kinds.items() if applies), None)
    if kind is not None:
        raise CheckpointError(f"{name}: a tensor that is {kind} cannot be saved; allowed: dense tensors")


def expected_bytes(state: Mapping[str, object]) -> int:
    """About the size of a checkpoint of `state` once its optimizers have stepped, layout included."""
    leaves = collect(state)
    tensors = [local(t) for t in leaves.tensors]
    present = sum(aligned(t.numel() * t.element_size()) for t in tensors)
    future = sum(future_state_bytes(v) for v in state.values() if isinstance(v, torch.optim.Optimizer))
    return present + future + 2048 * (len(tensors) + 8)


def names_of(state: Mapping[str, object], tree: TreeNode) -> list[str]:
    """A dotted name for each tensor of a tree, in order. It does not depend on the parallel shape."""
    aliases = optimizer_names(state)
    names: list[str] = []
    for key, node in tree["d"]:
        _name_leaves(node, (key,), aliases.get(key, {}), names)
    return names


def _without_tensors(state: Mapping[str, object], tree: TreeNode) -> Iterator[tuple[str, int, str]]:
    """Parameters that an optimizer has no tensor of, though it has stepped: key, number and name."""
    for key, names in optimizer_names(state).items():
        states = _children(_children(_children(tree).get(key)).get("state"))
        for number, name in names.items() if states else ():
            if not _has_tensor(states.get(number)):
                yield key, number, name


def _children(node: TreeNode | None) -> dict[Key, TreeNode]:
    return dict(node.get("d", ())) if node else {}


def _has_tensor(node: TreeNode | None) -> bool:
    ((kind, body),) = (node or {"v": 0}).items()
    if kind in "dlu":
        return any(_has_tensor(child) for child in ([c for _, c in body] if kind == "d" else body))
    return kind in "tn"


def _walk_entry(key: str, value: object, leaves: Leaves) -> Form:
    """One entry of the state. Only the optimizer changes parameters and the optimizer's own state."""
    before = len(leaves.tensors)
    if isinstance(value, torch.nn.Module):
        form = _walk(value.state_dict(keep_vars=True), (key,), leaves)
        parameters = [
            type(t) is torch.nn.Parameter or isinstance(t, torch.nn.Parameter)
            for t in leaves.tensors[before:]
        ]
        if not parameters or not all(parameters):
            fsdp1.refuse_rank0_only(key, value)
        leaves.optimizer_owned += parameters
        return form
    form = _walk(_content_of(key, value), (key,), leaves)
    owned = isinstance(value, torch.optim.Optimizer) or getattr(value, OPTIMIZER_OWNED, False)
    leaves.optimizer_owned += [owned] * (len(leaves.tensors) - before)
    return form


def _content_of(key: str, value: Nested) -> Nested:
    """What an entry is saved as. Raises `CheckpointError` for an object that could not load it again."""
    if not hasattr(value, "state_dict"):
        return value
    if not hasattr(value, "load_state_dict"):
        kind = type(value).__name__
        raise CheckpointError(f"{key}: a {kind} has state_dict and no load_state_dict to restore it with")
    return value.state_dict()


def _walk(node: Nested, path: Path, out: Leaves) -> Form:
    """The form of a node. Its leaves go into `out`."""
    token = _TOKENS.get(type(node))
    if token is not None:
        _take([node], token, out, path)
        return token
    if isinstance(node, Mapping):
        keys = tuple(node)
        if not set(map(type, keys)) <= {str, int}:
            _check_keys(keys, path)
        return ("d", keys, _walk_all(keys, list(node.values()), path, out))
    if isinstance(node, list | tuple):
        return ("u" if isinstance(node, tuple) else "l", _walk_all(range(len(node)), node, path, out))
    if isinstance(node, torch.Tensor | np.ndarray):
        _take([node], type(node), out, path)
        return type(node)
    if isinstance(node, _PLAIN):
        _take([node], _VALUE, out, path)
        return _VALUE
    where, kind = ".".join(map(str, path)), type(node).__name__
    raise CheckpointError(f"{where}: a {kind} cannot be saved; allowed: tensors, numbers, strings")


def _walk_all(keys: Sequence[Key], nodes: Sequence[Nested], path: Path, out: Leaves) -> tuple[Form, ...]:
    """The forms of the children. Children of one kind (tensors, values, tables of tensors) go in one call."""
    tokens = tuple(map(_TOKENS.get, map(type, nodes)))
    kinds = set(tokens)
    if kinds and (kinds <= _TENSORS or kinds in _SINGLE):
        if kinds == {np.ndarray}:
            for key, node in zip(keys, nodes, strict=True):
                _take([node], np.ndarray, out, (*path, key))
        else:
            _take(nodes, tokens[0], out, path)
        return tokens
    tables = _walk_tables(nodes, out) if kinds == {None} else None
    if tables is not None:
        return tables
    forms: list[Form] = []
    for key, node, token in zip(keys, nodes, tokens, strict=True):
        if token is _VALUE:
            out.values.append(node)
        forms.append(_VALUE if token is _VALUE else _walk(node, (*path, key), out))
    return tuple(forms)


def _walk_tables(nodes: Sequence[Nested], out: Leaves) -> tuple[Form, ...] | None:
    """The forms of mappings that hold only tensors, like an optimizer's state of each parameter.

    None where they hold anything else.
    """
    if set(map(type, nodes)) != {dict}:
        return None
    keys, leaves = tuple(chain.from_iterable(nodes)), tuple(chain.from_iterable(map(dict.values, nodes)))
    kinds = tuple(map(type, leaves))
    if not set(kinds) <= _TENSORS or not set(map(type, keys)) <= {str, int}:
        return None
    out.tensors += leaves
    return _table_forms(tuple(map(len, nodes)), keys, kinds)


@lru_cache(maxsize=16)  # of the optimizers that are saved again and again
def _table_forms(sizes: Sequence[int], keys: Sequence[Key], kinds: Sequence[type]) -> tuple[Form, ...]:
    """Forms of mappings of `sizes` entries each, with the keys and types of all of them in order."""
    ends = tuple(accumulate(sizes))
    return tuple(("d", keys[e - n : e], kinds[e - n : e]) for e, n in zip(ends, sizes, strict=True))


def _take(leaves: Sequence[Nested], token: Form, out: Leaves, path: Path) -> None:
    """Append leaves of one kind."""
    if token is _VALUE:
        out.values += leaves
    elif isinstance(token, type) and issubclass(token, np.ndarray):
        out.tensors += [_tensor(array, path) for array in leaves]
    else:
        out.tensors += leaves


def _tensor(array: np.ndarray, path: Path) -> torch.Tensor:
    """The array's memory as a tensor, or a copy of it where torch knows no such strides or byte order."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        with contextlib.suppress(TypeError, ValueError):
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    where = ".".join(map(str, path))
    raise CheckpointError(
        f"{where}: an array of {array.dtype} cannot be saved; allowed: types that torch has"
    )


def _check_keys(keys: Iterable[object], path: Path) -> None:
    for key in keys:
        if not isinstance(key, str | int):
            where = ".".join(map(str, path))
            raise CheckpointError(f"{where}: key {key!r} cannot be saved; allowed: strings and integers")


def _tree(form: Form, tensors: Iterator[int], values: Iterator[int]) -> TreeNode:
    """A form with its leaves numbered in order."""
    if form is _VALUE:
        return {"v": next(values)}
    if isinstance(form, type):
        return {"n" if issubclass(form, np.ndarray) else "t": next(tensors)}
    assert isinstance(form, tuple), "a form is a token, a type or a tuple"
    kind, *keys, forms = form
    children = [_tree(child, tensors, values) for child in forms]
    return {kind: [list(pair) for pair in zip(keys[0], children, strict=True)] if keys else children}


def _name_leaves(node: TreeNode, path: Path, alias: Mapping[int, str], out: list[str]) -> None:
    """In an optimizer, a parameter's number is replaced by its name. Parts have the name of their tensor."""
    ((kind, body),) = node.items()
    if kind in "tn":
        renamed = len(path) > 2 and path[1] == "state" and path[2] in alias
        parts = (path[0], "state", alias[path[2]], *path[3:]) if renamed else path
        parts = parts[:-1] if is_part(parts[-1]) else parts
        out.append(".".join(map(str, parts)))
    elif kind != "v":
        for key, child in body if kind == "d" else enumerate(body):
            _name_leaves(child, (*path, key), alias, out)
