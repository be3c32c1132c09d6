"""A batch of one record as numpy columns.

Agents build their batches from these, so that a training environment needs no Arrow. `records.encoding` turns
them into bytes, and the hub turns them into Arrow tables (`records.arrow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pulsetrain.core.errors import SchemaMismatch
from pulsetrain.records.schema import RECORDS, Field, Kind, Record

Array = npt.NDArray[np.generic]
Integers = npt.NDArray[np.int64]

DTYPES: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.NAME: "<i4",
        Kind.TEXT: "O",
        Kind.JSON: "O",
        Kind.I32: "<i4",
        Kind.I64: "<i8",
        Kind.F64: "<f8",
        Kind.MAYBE: "<f8",
        Kind.BOOL: "?",
        Kind.TIME: "<i8",
    }
)
"""The numpy type of each kind's values."""


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one field.

    `data` holds the values. For names it holds positions in `names`, for texts Python strings, for times UTC
    nanoseconds. `valid` is only set for a nullable field: false where there is no value.
    """

    kind: Kind
    data: Array
    names: tuple[str, ...] = ()
    valid: npt.NDArray[np.bool_] | None = None

    def to_list(self) -> list[object]:
        """The values as Python objects: names as strings, times as nanoseconds, a missing value as None."""
        values = self.data.tolist()
        if self.kind is Kind.NAME:
            return [self.names[code] for code in values]
        if self.valid is not None:
            return [value if valid else None for value, valid in zip(values, self.valid, strict=True)]
        return list(values)

    def part(self, first: int, end: int) -> Column:
        """The values of rows [first, end)."""
        valid = None if self.valid is None else self.valid[first:end]
        return Column(self.kind, self.data[first:end], self.names, valid)

    def integers(self) -> Integers:
        """The values of an integer, time or bool field."""
        return self.data.astype(np.int64, copy=False)

    def equals(self, name: str) -> npt.NDArray[np.bool_]:
        """For a field of names: which rows hold `name`."""
        known = np.array([each == name for each in self.names], np.bool_)
        return np.asarray(known[self.integers()], np.bool_)


@dataclass(frozen=True, eq=False)
class Columns:
    """Rows of one record, by column, in the record's order. Build them with one of the class methods."""

    record: str
    num_rows: int
    columns: Mapping[str, Column] = field(repr=False)

    @classmethod
    def from_values(cls, record: str, num_rows: int, values: Mapping[str, object]) -> Columns:
        """Columns from a value, sequence, numpy array or `Column` per field. A value stands for every row.

        Raises `SchemaMismatch` for a field that is missing, not the record's, of the wrong length or type.
        """
        target = record_of(record)
        unknown = sorted(set(values) - set(target.names))
        if unknown:
            raise SchemaMismatch(f"{record} has no column {unknown[0]!r}")
        return cls(
            record, num_rows, {f.name: checked_column(target, f, num_rows, values) for f in target.fields}
        )

    @classmethod
    def from_rows(cls, record: str, rows: Sequence[Mapping[str, object]]) -> Columns:
        """Columns from rows that hold a value for every field. Raises `SchemaMismatch`."""
        target = record_of(record)
        try:
            values = {name: [row[name] for row in rows] for name in target.names}
        except KeyError as error:
            raise SchemaMismatch(f"{record}.{error.args[0]} is missing") from error
        return cls.from_values(record, len(rows), values)

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of all `parts`, which are of one record. Raises `SchemaMismatch` where they are not."""
        first = parts[0]
        if any(part.record != first.record for part in parts):
            raise SchemaMismatch(f"rows of {sorted({part.record for part in parts})} in one batch")
        if len(parts) == 1:
            return first
        joined = {name: _joined([part.columns[name] for part in parts]) for name in first.columns}
        return cls(first.record, sum(part.num_rows for part in parts), joined)

    def pieces(self, most: int) -> list[Columns]:
        """The same rows as batches of at most `most` rows, in order."""
        if self.num_rows <= most:
            return [self]
        cuts = [(first, min(first + most, self.num_rows)) for first in range(0, self.num_rows, most)]
        return [
            Columns(self.record, end - first, {n: c.part(first, end) for n, c in self.columns.items()})
            for first, end in cuts
        ]

    def column(self, name: str) -> Column:
        """One column. Raises `KeyError`."""
        return self.columns[name]

    def to_rows(self) -> list[dict[str, object]]:
        """One dictionary per row; see `Column.to_list`."""
        lists = [column.to_list() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*lists, strict=True)]


def record_of(name: str) -> Record:
    """The record of that name. Raises `SchemaMismatch`."""
    if name not in RECORDS:
        raise SchemaMismatch(f"unknown record {name!r}; allowed: {', '.join(RECORDS)}")
    return RECORDS[name]


def coded(codes: Array, names: Sequence[str]) -> Column:
    """A column of names from their positions in `names`."""
    return Column(Kind.NAME, np.ascontiguousarray(codes, "<i4"), tuple(names))


def nullable(values: Array, valid: npt.NDArray[np.bool_]) -> Column:
    """A column of numbers that holds a value only where `valid`."""
    return Column(Kind.MAYBE, np.ascontiguousarray(values, "<f8"), valid=valid)


def checked_column(record: Record, wanted: Field, rows: int, values: Mapping[str, object]) -> Column:
    """The column of one field, made from `values`. Raises `SchemaMismatch`."""
    where = f"{record.name}.{wanted.name}"
    if wanted.name not in values:
        raise SchemaMismatch(f"{where} is missing")
    value = values[wanted.name]
    try:
        column = value if isinstance(value, Column) else _converted(wanted.kind, rows, value)
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaMismatch(f"{where} does not hold {wanted.kind.code} values: {error}") from error
    if column.kind is not wanted.kind or len(column.data) != rows:
        raise SchemaMismatch(
            f"{where} is {len(column.data)} values of {column.kind.code}; "
            f"it must be {rows} of {wanted.kind.code}"
        )
    return column


def _converted(kind: Kind, rows: int, value: object) -> Column:
    single = isinstance(value, (str, int, float)) or value is None
    if kind is Kind.NAME:
        return coded(np.zeros(rows, "<i4"), (_text(value),)) if single else _names(_listed(value))
    if isinstance(value, np.ndarray):
        whole = np.ascontiguousarray(value, DTYPES[kind])
        return nullable(whole, np.ones(len(whole), np.bool_)) if kind is Kind.MAYBE else Column(kind, whole)
    if single:
        return _repeated(kind, rows, value)
    values = _listed(value)
    if kind is Kind.MAYBE:
        numbers = np.array([np.nan if v is None else v for v in values], "<f8")
        return nullable(numbers, np.array([v is not None for v in values], np.bool_))
    if kind in (Kind.TEXT, Kind.JSON):
        values = [_text(v) for v in values]
    return Column(kind, np.array(values, DTYPES[kind]))


def _repeated(kind: Kind, rows: int, value: object) -> Column:
    if kind is Kind.MAYBE:
        missing = value is None
        return nullable(
            np.full(rows, np.nan if missing else value, "<f8"), np.full(rows, not missing, np.bool_)
        )
    return Column(
        kind, np.full(rows, _text(value) if kind in (Kind.TEXT, Kind.JSON) else value, DTYPES[kind])
    )


def _listed(value: object) -> list[object]:
    if not isinstance(value, Sequence):
        raise TypeError(f"{type(value).__name__} is no sequence")
    return list(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _names(values: Sequence[object]) -> Column:
    known: dict[str, int] = {}
    codes = [known.setdefault(_text(value), len(known)) for value in values]
    return coded(np.array(codes, "<i4"), tuple(known))


def _joined(parts: Sequence[Column]) -> Column:
    first = parts[0]
    if first.kind is not Kind.NAME:
        valid = None if first.valid is None else np.concatenate([_valid(part) for part in parts])
        return Column(first.kind, np.concatenate([part.data for part in parts]), valid=valid)
    if all(part.names == first.names for part in parts):
        return coded(np.concatenate([part.data for part in parts]), first.names)
    known: dict[str, int] = {}
    codes = []
    for part in parts:
        table = np.array([known.setdefault(name, len(known)) for name in part.names], "<i4")
        codes.append(table[part.data] if len(table) else part.data)
    return coded(np.concatenate(codes), tuple(known))


def _valid(column: Column) -> npt.NDArray[np.bool_]:
    return np.ones(len(column.data), np.bool_) if column.valid is None else column.valid
