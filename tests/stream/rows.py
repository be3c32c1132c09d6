"""Rows to test with, as Arrow tables: small tables of any record, derived from its schema."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.records.arrow import arrow_schema, arrow_type
from pulsetrain.records.columns import Columns
from pulsetrain.records.schema import RECORDS, Kind
from tests.records.rows import DAY, columns, value

__all__ = ["DAY", "as_columns", "columns", "table"]


def table(record, rows, *, first=0, **columns):
    """`rows` rows of `record`; columns that are not given hold a value made from the row's number."""
    numbers = range(first, first + rows)
    arrays = []
    for field in RECORDS[record].fields:
        values = columns.get(field.name) or [value(field, i) for i in numbers]
        if isinstance(values, (str, int, float)):
            values = [values] * rows
        kind = arrow_type(field.kind)
        if pa.types.is_dictionary(kind):
            arrays.append(pa.array(values, pa.string()).dictionary_encode().cast(kind))
        else:
            arrays.append(pa.array(values, kind))
    return pa.table(arrays, schema=arrow_schema(record))


def as_columns(record, rows):
    """An Arrow table of a record, as an agent builds it."""
    times = [f.name for f in RECORDS[record].fields if f.kind is Kind.TIME]
    for name in times:
        rows = rows.set_column(rows.column_names.index(name), name, rows.column(name).cast(pa.int64()))
    return Columns.from_rows(record, rows.to_pylist())
