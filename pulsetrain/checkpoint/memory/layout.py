"""What the bytes of a checkpoint mean: a table of named tensors and the tree they hang in. No torch, no
pickle.

The layout (JSON) changes only when the structure of the state does; the values (JSON) are the plain numbers
and strings of one save. Tensors are raw little-endian bytes in the order of the table, each on a 64-byte
boundary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsetrain.core.errors import CorruptData

ALIGN = 64


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of one rank. `name` is the same at every parallel shape; `at` and `whole` place the local
    box of `shape` in the global tensor (both empty: the tensor is whole). `offset` is from the start of the
    payload."""

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
    """Table of tensors and tree of one rank's state. A tree node is one of {"d": [[key, node]...]} a mapping,
    {"l": [...]} a list, {"u": [...]} a tuple, {"t": i} the i-th tensor, {"n": i} the same as
    a numpy array, {"v": i} the i-th value."""

    entries: tuple[Entry, ...]
    tree: Any

    @property
    def payload_bytes(self) -> int:
        """Bytes from the first tensor to the end of the last."""
        return max((e.offset + e.bytes for e in self.entries), default=0)

    def encode(self) -> bytes:
        """As JSON; only fields that say something are written."""
        return json.dumps({"tensors": [_row(e) for e in self.entries], "tree": self.tree}).encode()


def decode(data: bytes | memoryview) -> Layout:
    """The layout in `data`. Raises `CorruptData`."""
    try:
        raw = json.loads(bytes(data))
        return Layout(entries=tuple(_entry(row) for row in raw["tensors"]), tree=raw["tree"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"not a checkpoint layout: {error!r}") from error


def encode_values(values: Sequence[Any]) -> bytes:
    """Plain numbers, strings, booleans and None; NaN and infinities survive."""
    return json.dumps(list(values)).encode()


def decode_values(data: bytes | memoryview) -> list[Any]:
    """What `encode_values` was given. Raises `CorruptData`."""
    try:
        values = json.loads(bytes(data))
    except ValueError as error:
        raise CorruptData(f"not checkpoint values: {error}") from error
    if not isinstance(values, list):
        raise CorruptData(f"not checkpoint values: {type(values).__name__}")
    return values


def aligned(offset: int) -> int:
    """The next place a tensor may begin."""
    return -(-offset // ALIGN) * ALIGN


def element_bytes(entry: Entry) -> int:
    """Bytes of one element; 0 for an empty tensor."""
    count = math.prod(entry.shape)
    return entry.bytes // count if count else 0


def rebuild(node: Mapping[str, Any], tensors: Sequence[Any], values: Sequence[Any]) -> Any:
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


def _row(entry: Entry) -> list[Any]:
    row = [entry.name, entry.dtype, list(entry.shape), entry.offset, entry.bytes]
    return [*row, list(entry.at), list(entry.whole)] if entry.whole else row


def _entry(row: Sequence[Any]) -> Entry:
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
