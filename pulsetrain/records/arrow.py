"""Records as Arrow: the schema of each record, and batches of columns as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.records.columns import Column, Columns
from pulsetrain.records.schema import RECORDS, Kind, Record

ArrowColumn: TypeAlias = "pa.ChunkedArray[Any]"
"""A column of a table, whatever its type."""
ArrowArray: TypeAlias = "pa.Array[Any]"
"""One chunk of a column, whatever its type."""
DictionaryColumn: TypeAlias = "pa.DictionaryArray[Any, Any]"
"""Strings as codes and names."""

_TYPES: Mapping[Kind, pa.DataType] = MappingProxyType(
    {
        Kind.NAME: pa.dictionary(pa.int32(), pa.string()),
        Kind.TEXT: pa.string(),
        Kind.JSON: pa.string(),
        Kind.I32: pa.int32(),
        Kind.I64: pa.int64(),
        Kind.F64: pa.float64(),
        Kind.MAYBE: pa.float64(),
        Kind.BOOL: pa.bool_(),
        Kind.TIME: pa.timestamp("ns", tz="UTC"),
    }
)


def arrow_type(kind: Kind) -> pa.DataType:
    """The Arrow type of a field of this kind."""
    return _TYPES[kind]


@cache
def arrow_schema(record: str) -> pa.Schema:
    """The Arrow schema of a record. Raises `KeyError` for a name that is not in `RECORDS`."""
    return schema_of(RECORDS[record])


def schema_of(record: Record) -> pa.Schema:
    """The Arrow schema of a record that need not be in `RECORDS`."""
    return pa.schema(
        [pa.field(f.name, arrow_type(f.kind), nullable=f.kind is Kind.MAYBE) for f in record.fields]
    )


def to_table(batch: Columns) -> pa.Table:
    """The columns that `batch` has, as an Arrow table. Numbers are not copied."""
    return pa.table({name: _array(column) for name, column in batch.columns.items()})


def number_array(values: NDArray[np.generic]) -> ArrowArray:
    """An Arrow array of numbers. The stubs of pyarrow take every numpy array for one of booleans."""
    array: ArrowArray = pa.array(values)
    return array


def dictionary_array(codes: NDArray[np.generic], names: Sequence[str]) -> DictionaryColumn:
    """A dictionary array of `names` by code."""
    return pa.DictionaryArray.from_arrays(number_array(codes), pa.array(names, pa.string()))


def sorted_codes(column: ArrowColumn) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A column of names, plain or coded, as (N,) positions in its sorted names, and these.

    >>> codes, names = sorted_codes(pa.chunked_array([["b", "a"], ["b"]]))
    >>> codes.tolist(), names
    ([1, 0, 1], ('a', 'b'))
    """
    whole = pa.chunked_array([column.cast(pa.string()).combine_chunks()])
    coded = cast("DictionaryColumn", whole.dictionary_encode().combine_chunks())
    found = cast("list[str]", coded.dictionary.to_pylist())
    order = sorted(range(len(found)), key=found.__getitem__)
    place = np.empty(len(found), np.int64)
    place[order] = np.arange(len(found))
    return place[coded.indices.to_numpy()], tuple(found[i] for i in order)


def _array(column: Column) -> ArrowArray:
    kind = arrow_type(column.kind)
    if column.kind is Kind.NAME:
        return dictionary_array(column.data, column.names)
    if column.kind is Kind.TIME:
        return pa.array(column.data).view(kind)
    return pa.array(column.data, kind, mask=None if column.valid is None else ~column.valid)
