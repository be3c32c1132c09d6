"""Rows to test with, as agents build them: small batches of any record, derived from its schema."""

from __future__ import annotations

from pulsetrain.records.columns import Columns
from pulsetrain.records.schema import RECORDS, Kind

DAY = 1_790_000_000_000_000_000


def columns(record, rows, *, first=0, **given):
    """`rows` rows of `record`; columns that are not given hold a value made from the row's number."""
    numbers = range(first, first + rows)
    made = {f.name: given.get(f.name) or [value(f, i) for i in numbers] for f in RECORDS[record].fields}
    return Columns.from_values(record, rows, made)


def value(field, number):
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
