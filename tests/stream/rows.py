"""Rows to test with: small tables of any record, derived from its schema."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.records.schema import RECORDS, Kind, arrow_schema

DAY = 1_790_000_000_000_000_000


def table(record, rows, *, first=0, **columns):
    """`rows` rows of `record`; columns that are not given hold a value made from the row's number."""
    numbers = range(first, first + rows)
    arrays = []
    for field in RECORDS[record].fields:
        values = columns.get(field.name) or [_value(field, i) for i in numbers]
        if isinstance(values, (str, int, float)):
            values = [values] * rows
        kind = field.kind.arrow
        if pa.types.is_dictionary(kind):
            arrays.append(pa.array(values, pa.string()).dictionary_encode().cast(kind))
        else:
            arrays.append(pa.array(values, kind))
    return pa.table(arrays, schema=arrow_schema(record))


def _value(field, number):
    match field.kind:
        case Kind.NAME | Kind.TEXT:
            return f"{field.name}-{number % 3}"
        case Kind.JSON:
            return "{}"
        case Kind.BOOL:
            return False
        case Kind.TIME:
            return DAY + number
        case _:
            return number
