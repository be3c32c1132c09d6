"""Many objects of one kind as columns, which take a third of the bytes and of the time of a list of objects.

    {"rows": 8, "columns": {"rank": [0, 1, ...], "state": {"same": "running"}, "op": {"values": [...],
    "codes": [0, 0, 1, ...]}}}

A column of defaults is left out. One in which all values are equal is {"same": value}. Where few values come
again and again, they are listed once. A field that itself holds many objects of one kind for each row is
{"lengths": column, "items": packed}. Values that JSON lacks are written and read by functions of the caller.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.field_types import refuse_others
from pulsetrain.protocol.late_rows import Column, LateRows, Listed, Nested, Same, Table

MOST_ROWS = 1 << 16
"""More in one message are refused: equal values take no space, so its size would not limit them."""
_CODED = 4  # from so many rows on it may pay to list values once

Value = Callable[[Any], object]


@dataclass(frozen=True)
class Packed:
    """How objects of a class are packed.

    `items` maps fields that hold many objects to how those are packed. `write` and `read` turn values of a
    field into JSON and back.
    """

    cls: type
    items: Mapping[str, Packed]
    write: Mapping[str, Value]
    read: Mapping[str, Value]


def pack(kind: Packed, rows: Sequence[object]) -> JsonObject:
    """The rows, objects of `kind`'s class, as columns."""
    columns: JsonObject = {}
    for each in dataclasses.fields(kind.cls):
        values = [getattr(row, each.name) for row in rows]
        if all(value == each.default for value in values):
            continue
        if each.name in kind.items:
            flat = [item for value in values for item in value]
            lengths = _column([len(value) for value in values])
            columns[each.name] = {"lengths": lengths, "items": pack(kind.items[each.name], flat)}
        else:
            columns[each.name] = _column(values, kind.write.get(each.name))
    return {"rows": len(rows), "columns": columns}


def _column(values: Sequence[Any], write: Value | None = None) -> object:
    """The values of one field, of which there is at least one."""
    written = write or _itself
    if all(value == values[0] for value in values):
        return {"same": written(values[0])}
    if len(values) < _CODED or isinstance(values[0], (int, float)):
        return [written(value) for value in values]
    codes: dict[object, int] = {}
    coded = [codes.setdefault(value, len(codes)) for value in values]
    if 2 * len(codes) > len(values):
        return [written(value) for value in values]
    return {"values": [written(value) for value in codes], "codes": coded}


def unpack(kind: Packed, packed: JsonObject) -> LateRows[Any]:
    """The rows that `pack` packed. Fields that `kind` does not know are left out. No object is made yet.

    Raises `ValueError`, `KeyError`, `TypeError` or `IndexError` for anything else.
    """
    rows, given = packed["rows"], packed["columns"]
    if not isinstance(rows, int) or not 0 <= rows <= MOST_ROWS:
        raise ValueError(f"{rows} rows")
    columns: dict[str, Column] = {}
    values: dict[str, list[Any]] = {}
    for name, default in _defaults(kind.cls).items():
        if not rows or (name not in given and default is not dataclasses.MISSING):
            columns[name] = Same(default)
        elif name not in given:
            raise KeyError(f"{name} is missing")
        elif name in kind.items:
            columns[name] = _items(kind.items[name], given[name], rows)
        else:
            columns[name], values[name] = _read(given[name], rows, kind.read.get(name))
    refuse_others(kind.cls, values)
    return LateRows(Table(kind.cls, columns), 0, rows)


def _items(kind: Packed, column: Any, rows: int) -> Nested:
    """For each row its own objects."""
    flat = unpack(kind, column["items"])
    lengths = _read(column["lengths"], rows)[0].part(0, rows)
    if min(lengths) < 0:
        raise ValueError(f"a row with {min(lengths)} objects")
    ends = list(itertools.accumulate(lengths))
    if ends[-1:] != [len(flat)]:
        raise ValueError(f"{len(flat)} objects for {ends[-1:]}")
    return Nested(flat, ends)


def _read(column: Any, rows: int, read: Value | None = None) -> tuple[Column, list[Any]]:
    """A column, and its different values as far as they are known apart."""
    read = read or _itself
    if isinstance(column, list):
        values = distinct = column if read is _itself else [read(value) for value in column]
    elif "same" in column:
        same = read(column["same"])
        return Same(same), [same]
    else:
        distinct = [read(value) for value in column["values"]]
        values = [distinct[code] for code in column["codes"]]
    if len(values) != rows:
        raise ValueError(f"{len(values)} values for {rows} rows")
    return Listed(values), distinct


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    """The default of each field, `dataclasses.MISSING` where it has none."""
    return {each.name: _default(each) for each in dataclasses.fields(cls)}


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        raise TypeError(f"{field.name}: a row cannot share what a factory makes")
    return field.default


def _itself(value: object) -> object:
    return value
