"""Many objects of one kind as columns, which take a third of the bytes and of the time of a list of objects.

    {"rows": 8, "columns": {"rank": [0, 1, ...], "state": {"same": "running"}, "op": {"values": [...],
    "codes": [0, 0, 1, ...]}}}

A column of defaults is left out. One in which all values are equal is {"same": value}. Where few values come
again and again, they are listed once. A field that itself holds many objects of one kind for each row is
{"lengths": column, "items": packed}. Values that JSON lacks are written and read by functions of the caller.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.field_types import refuse_others

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

    @property
    def names(self) -> tuple[str, ...]:
        """The fields in their order."""
        return tuple(f.name for f in dataclasses.fields(self.cls))


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


def unpack(kind: Packed, packed: JsonObject) -> tuple[object, ...]:
    """The rows that `pack` packed. Fields that `kind` does not know are left out.

    Raises `ValueError`, `KeyError`, `TypeError` or `IndexError` for anything else.
    """
    rows, columns = packed["rows"], packed["columns"]
    if not isinstance(rows, int) or not 0 <= rows <= MOST_ROWS:
        raise ValueError(f"{rows} rows")
    if not rows:
        return ()
    values = [_values(kind, each, columns.get(each.name), rows) for each in dataclasses.fields(kind.cls)]
    given = {name: column for name, column in zip(kind.names, values, strict=True) if name in columns}
    refuse_others(kind.cls, given)
    return tuple(make(kind.cls, kind.names, zip(*values, strict=False), rows))


def make(cls: type, names: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> list[object]:
    """Objects of a frozen dataclass, of `count` rows at most.

    A hub makes a hundred thousand of them in a second. Their own `__init__` would take five times as long.
    """
    made: list[object] = [object.__new__(cls) for _ in range(count)]
    for each, row in zip(made, rows, strict=False):
        fields = each.__dict__
        for name, value in zip(names, row, strict=True):
            fields[name] = value
    return made


def _values(kind: Packed, field: dataclasses.Field[Any], column: object, rows: int) -> Iterable[object]:
    """The values of one field, one for each row."""
    if column is None:
        return itertools.repeat(_default(field))
    if field.name in kind.items:
        return _items(kind.items[field.name], column, rows)
    return _listed(column, rows, kind.read.get(field.name))


def _items(kind: Packed, column: Any, rows: int) -> list[object]:
    """For each row its own objects."""
    flat = unpack(kind, column["items"])
    ends = list(itertools.accumulate(_listed(column["lengths"], rows)))
    if ends[-1:] != [len(flat)]:
        raise ValueError(f"{len(flat)} objects for {ends[-1:]}")
    return [flat[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _listed(column: Any, rows: int, read: Value | None = None) -> list[Any]:
    if isinstance(column, list):
        values = column if read is None else [read(value) for value in column]
    elif "same" in column:
        same = column["same"]
        return [same if read is None else read(same)] * rows
    else:
        known = column["values"] if read is None else [read(value) for value in column["values"]]
        values = [known[code] for code in column["codes"]]
    if len(values) != rows:
        raise ValueError(f"{len(values)} values for {rows} rows")
    return values


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise KeyError(f"{field.name} is missing")


def _itself(value: object) -> object:
    return value
