"""Objects of one kind that came as columns and are made when somebody looks at them.

A hub gets hundreds of thousands of objects in a second and looks at few of them. The columns are checked
when they come, so making an object later cannot fail. Nothing changes a column. They are not frozen
dataclasses, because those take longer to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


@dataclass(slots=True)
class Same:
    """A column of equal values."""

    value: Any

    def part(self, begin: int, end: int) -> Sequence[Any]:
        """The values of some rows."""
        return [self.value] * (end - begin)


@dataclass(slots=True)
class Listed:
    """A column with a value for each row."""

    values: list[Any]

    def part(self, begin: int, end: int) -> Sequence[Any]:
        """The values of some rows."""
        return self.values[begin:end]


@dataclass(slots=True)
class Nested:
    """A column in which each row has objects of its own. `ends` says where those of each row end."""

    items: LateRows[Any]
    ends: list[int]

    def part(self, begin: int, end: int) -> Sequence[Any]:
        """The objects of some rows, none of them made yet."""
        starts = [self.ends[begin - 1] if begin else 0, *self.ends[begin : end - 1]]
        return [self.items.part(s, e) for s, e in zip(starts, self.ends[begin:end], strict=True)]


Column = Same | Listed | Nested


@dataclass(slots=True)
class Table:
    """Checked columns of objects of a class: one for each of its fields, in their order."""

    cls: type
    columns: Mapping[str, Column]


class _Rows(Sequence[T], Generic[T]):
    """Rows whose objects are made when somebody looks at one. They equal a tuple of the same objects."""

    __slots__ = ()

    def column(self, name: str) -> Sequence[Any]:
        """The values of one field. No object is made for them."""
        raise NotImplementedError

    def made(self) -> tuple[T, ...]:
        """All objects."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        return iter(self.made())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Rows):
            return self.made() == other.made()
        return self.made() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.made())

    def __repr__(self) -> str:
        return repr(self.made())


class LateRows(_Rows[T]):
    """Some rows of a table."""

    __slots__ = ("_begin", "_end", "_made", "_table")

    def __init__(self, table: Table, begin: int, end: int) -> None:
        self._table, self._begin, self._end = table, begin, end
        self._made: tuple[T, ...] | None = None

    def column(self, name: str) -> Sequence[Any]:
        return self._table.columns[name].part(self._begin, self._end)

    def same(self, name: str, value: object) -> bool:
        """Whether a field is known to have this value in all rows, without a look at each."""
        column = self._table.columns[name]
        return isinstance(column, Same) and bool(column.value == value)

    def part(self, begin: int, end: int) -> LateRows[T]:
        """Some of the rows, none of them made."""
        return LateRows(self._table, self._begin + begin, self._begin + end)

    def made(self) -> tuple[T, ...]:
        if self._made is None:
            columns = self._table.columns
            parts = [column.part(self._begin, self._end) for column in columns.values()]
            rows = zip(*parts, strict=True)
            self._made = tuple(make(self._table.cls, tuple(columns), rows))
        return self._made

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice) and self._made is None:
            begin, end, stride = index.indices(len(self))
            if stride == 1:
                return self.part(begin, max(begin, end))
        return self.made()[index]


class JoinedRows(_Rows[T]):
    """Rows of several parts, one part after another."""

    __slots__ = ("_length", "_made", "_parts")

    def __init__(self, parts: Iterable[Sequence[T]]) -> None:
        self._parts = tuple(parts)
        self._length = sum(map(len, self._parts))
        self._made: tuple[T, ...] | None = None

    def column(self, name: str) -> Sequence[Any]:
        return [value for part in self._parts for value in column(part, name)]

    def made(self) -> tuple[T, ...]:
        if self._made is None:
            self._made = tuple(row for part in self._parts for row in part)
        return self._made

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.made()[index]


def column(rows: Sequence[object], name: str) -> Sequence[Any]:
    """The values of one field of all rows, whether or not their objects are made."""
    if isinstance(rows, _Rows):
        return rows.column(name)
    return [getattr(row, name) for row in rows]


def tells(rows: Sequence[object], name: str) -> bool:
    """Whether any row may have another value than "" or nothing in a field."""
    if isinstance(rows, LateRows):
        return bool(rows) and not (rows.same(name, "") or rows.same(name, ()))
    return any(getattr(row, name) for row in rows)


def make(cls: type, names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[Any]:
    """An object of a frozen dataclass for each row. Their own `__init__` would take five times as long."""
    made: list[Any] = []
    for row in rows:
        each: Any = object.__new__(cls)
        each.__dict__.update(zip(names, row, strict=True))
        made.append(each)
    return made


def make_one(cls: type, fields: Mapping[str, object]) -> Any:
    """One object of a frozen dataclass, of all its fields. See `make`."""
    each: Any = object.__new__(cls)
    each.__dict__.update(fields)
    return each
