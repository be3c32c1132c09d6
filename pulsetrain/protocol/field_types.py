"""Whether values that came over the wire have the types of their fields.

JSON can hold anything in any field. A hub that kept a list where a name belongs would fail much later, at
each look at it. Names of states are not checked: a newer agent may know more of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Check = Callable[[Sequence[Any]], bool]
"""Whether all values of a column are of a type."""

_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


def refuse_others(cls: type, columns: Mapping[str, Iterable[Any]]) -> None:
    """Raise `TypeError` where a column holds values that its field of `cls` cannot have."""
    checks = _checks(cls)
    for name, column in columns.items():
        values = column if isinstance(column, list) else list(column)
        if values and not checks[name](values):
            wrong = next((value for value in values if not checks[name]([value])), None)
            raise TypeError(f"{cls.__name__}.{name} = {repr(wrong)[:80]}")


def refuse_other(cls: type, fields: Mapping[str, Any]) -> None:
    """The same for the fields of one object. Most hold a plain value or nothing, which is seen at once."""
    plain, checks = _plain(cls), _checks(cls)
    for name, value in fields.items():
        kind = type(value)
        if kind is plain[name] and (
            not value or kind is str or kind is bool or (kind is int and _SMALLEST <= value <= _LARGEST)
        ):
            continue
        if not checks[name]([value]):
            raise TypeError(f"{cls.__name__}.{name} = {repr(value)[:80]}")


@functools.cache
def _plain(cls: type) -> dict[str, type | None]:
    """The type of each field as JSON's values have it, None where the type alone does not say enough."""
    hints = typing.get_type_hints(cls)
    return {each.name: _plain_type(hints[each.name]) for each in dataclasses.fields(cls)}


def _plain_type(annotation: Any) -> type | None:
    if annotation in (int, str, bool):
        return typing.cast("type", annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        kinds = set(map(type, typing.get_args(annotation)))
        return kinds.pop() if len(kinds) == 1 else None
    return {tuple: tuple, Sequence: tuple, Mapping: dict}.get(origin)


@functools.cache
def _checks(cls: type) -> dict[str, Check]:
    """What values of each field must be. Fields that hold objects were made by their own readers."""
    hints = typing.get_type_hints(cls)
    return {each.name: _check(hints[each.name]) for each in dataclasses.fields(cls)}


def _check(annotation: Any) -> Check:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is int:
        return _whole_numbers
    if annotation is float:
        return _numbers
    if annotation in (str, bool):
        return lambda values: set(map(type, values)) == {annotation}
    if origin is typing.Literal:
        return lambda values: set(map(type, values)) <= set(map(type, inner))
    if origin is Sequence:
        return _objects
    if origin is tuple:
        item = _anything if dataclasses.is_dataclass(inner[0]) else _check(inner[0])
        return functools.partial(_tuples, item)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _anything if inner[1] is Any else _check(inner[1])
        return lambda values: all(_is_mapping(value, item) for value in values)
    if dataclasses.is_dataclass(annotation):
        return _anything
    if origin in (typing.Union, types.UnionType):
        raise TypeError(f"union in a message type: {annotation}")
    raise TypeError(f"{annotation} in a message type")


def _tuples(item: Check, values: Sequence[Any]) -> bool:
    """Rows share their tuples, so each is looked at once. A kind of tuple was checked by who made it."""
    distinct = {id(value): value for value in values}.values()
    return all(
        isinstance(each, tuple) and (type(each) is not tuple or not each or item(each)) for each in distinct
    )


def _objects(values: Sequence[Any]) -> bool:
    """Sequences whose objects were checked by who read them."""
    return all(
        type(value) is tuple or (isinstance(value, Sequence) and not isinstance(value, str))
        for value in values
    )


def _whole_numbers(values: Sequence[Any]) -> bool:
    """True and False are none. A store holds 64 bits."""
    return set(map(type, values)) == {int} and min(values) >= _SMALLEST and max(values) <= _LARGEST


def _numbers(values: Sequence[Any]) -> bool:
    """JSON has no infinity."""
    return set(map(type, values)) <= {float, int} and all(map(math.isfinite, values))


def _is_mapping(value: object, item: Check) -> bool:
    return isinstance(value, dict | Mapping) and (not value or item(list(value.values())))


def _anything(values: Sequence[Any]) -> bool:
    return True
