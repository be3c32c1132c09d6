"""What the bytes of a checkpoint mean: a table of named tensors and the tree of the state they belong to.

No torch, no pickle. The layout (JSON) changes only when the structure of the state does. The values (JSON)
are the plain numbers and strings of one save. Tensors are raw little-endian bytes in the order of the table,
each on a 64-byte boundary.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from pulsetrain.core.errors import CorruptData
from pulsetrain.core.json import JsonObject

ALIGN = 64

TreeNode: TypeAlias = JsonObject
"""A node of a layout's tree, with one key that says its kind: {"d": [[key, node]...]} is a mapping,
{"l": [...]} a list, {"u": [...]} a tuple, {"t": i} the i-th tensor, {"n": i} the same as a numpy array,
{"v": i} the i-th value."""

Nested: TypeAlias = Any
"""A state or a part of it: mappings, lists and tuples, with tensors, arrays and plain values as leaves."""


Plain: TypeAlias = bool | int | float | str | None
"""What is saved as a value."""


class ArrayLike(Protocol):
    """A tensor, or what takes its place."""

    def numpy(self) -> object:
        """The same as a numpy array."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of one rank. `name` is the same at every parallel shape.

    The local box of `shape` begins at `at` in the global tensor of shape `whole`. Both are empty for a tensor
    that is whole. `offset` is from the start of the payload.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    at: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()

    @property
    def box(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """(start, size, global shape) with the defaults of a whole tensor filled in."""
        return self.at or (0,) * len(self.shape), self.shape, self.whole or self.shape


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Table of tensors and tree of one rank's state.

    `without_tensors` are parameters of which an optimizer with state has no tensor: the optimizer's key, and
    their number and name, which nothing else says.
    """

    entries: tuple[Entry, ...]
    tree: TreeNode
    without_tensors: tuple[tuple[str, int, str], ...] = ()

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes from the first tensor to the end of the last."""
        return max((e.offset + e.bytes for e in self.entries), default=0)

    @cached_property
    def shard(self) -> int:
        """A number that says which parts of which tensors these are. 0: no tensor says that it is a part.

        Without that, equal names do not mean that ranks have saved the same.
        """
        if not any(e.whole for e in self.entries):
            return 0
        parts = sorted((e.name, e.dtype, *e.box) for e in self.entries if not of_one_rank(e.name))
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 2 | 1

    def encode(self) -> bytes:
        """As JSON. The position in the whole is left out for tensors that are whole."""
        more = {"without_tensors": self.without_tensors} if self.without_tensors else {}
        return json.dumps({"tensors": [_row(e) for e in self.entries], "tree": self.tree, **more}).encode()


def decode(data: bytes | memoryview) -> Layout:
    """The layout in `data`. Raises `CorruptData`."""
    try:
        raw = json.loads(bytes(data))
        return Layout(
            entries=tuple(_entry(row) for row in raw["tensors"]),
            tree=raw["tree"],
            without_tensors=tuple(
                (key, number, name) for key, number, name in raw.get("without_tensors", ())
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"not a checkpoint layout: {error!r}") from error


def encode_values(values: Sequence[Plain]) -> bytes:
    """Plain numbers, strings, booleans and None as JSON. NaN and infinities survive."""
    return json.dumps(list(values)).encode()


def decode_values(data: bytes | memoryview) -> list[Plain]:
    """What `encode_values` was given. Raises `CorruptData`."""
    try:
        values = json.loads(bytes(data))
    except ValueError as error:
        raise CorruptData(f"not checkpoint values: {error}") from error
    if not isinstance(values, list):
        raise CorruptData(f"not checkpoint values: {type(values).__name__}")
    return values


def of_one_rank(name: str) -> bool:
    """The state of random generators differs from rank to rank and is never put together."""
    return name.startswith("pulsetrain.rng.")


def aligned(offset: int) -> int:
    """The next place a tensor may begin."""
    return -(-offset // ALIGN) * ALIGN


def element_bytes(entry: Entry) -> int:
    """Bytes of one element. 0 for an empty tensor."""
    count = math.prod(entry.shape)
    return entry.bytes // count if count else 0


def rebuild(node: TreeNode, tensors: Sequence[ArrayLike], values: Sequence[Plain]) -> Nested:
    """The nested state of a tree, with `tensors[i]` and `values[i]` at its leaves."""
    ((kind, body),) = node.items()
    if kind == "t":
        return tensors[body]
    if kind == "n":
        return tensors[body].numpy()
    if kind == "v":
        return values[body]
    if kind == "d":
        return {key: rebuild(child, tensors, values) for key, child in body}
    items = [rebuild(child, tensors, values) for child in body]
    return tuple(items) if kind == "u" else items


def _row(entry: Entry) -> list[object]:
    row: list[object] = [entry.name, entry.dtype, list(entry.shape), entry.offset, entry.bytes]
    return [*row, list(entry.at), list(entry.whole)] if entry.whole else row


def _entry(row: Sequence[Nested]) -> Entry:
    name, dtype, shape, offset, size, *rest = row
    at, whole = rest or ((), ())
    return Entry(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        offset=offset,
        bytes=size,
        at=tuple(at),
        whole=tuple(whole),
    )
