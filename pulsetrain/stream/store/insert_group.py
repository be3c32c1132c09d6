"""Rows of one record that are inserted together, under one deduplication token.

A group is one uncompressed Arrow IPC stream: the bytes that the store's engine reads are also the bytes that
a journal keeps. What the group is (record, token, row ranges) stands in the metadata of the stream's schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pulsetrain.core.errors import CorruptData

_METADATA = b"pulsetrain.group"


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Rows [first, end) of one source. A source numbers the rows of each record from 0."""

    source: str
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class InsertGroup:
    """`data` holds `rows` rows as an Arrow IPC stream. `ranges` say whose rows are stored by its insert.

    The ranges may hold more rows than `data`: rows that went to the quarantine count as stored.
    """

    record: str
    token: str
    columns: tuple[str, ...]
    ranges: tuple[RowRange, ...]
    rows: int
    data: bytes = field(repr=False)


def encode_group(record: str, token: str, ranges: Sequence[RowRange], table: pa.Table) -> InsertGroup:
    """The group of `table`'s rows."""
    identity = {
        "record": record,
        "token": token,
        "shares": [(r.source, r.first, r.end) for r in ranges],
        "rows": table.num_rows,
    }
    metadata = {_METADATA: json.dumps(identity).encode()}
    table = table.unify_dictionaries().combine_chunks().replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return InsertGroup(
        record=record,
        token=token,
        columns=tuple(table.column_names),
        ranges=tuple(ranges),
        rows=table.num_rows,
        data=sink.getvalue().to_pybytes(),
    )


def part_of(group: InsertGroup, wanted: Sequence[RowRange]) -> InsertGroup | None:
    """The group with only the rows of `wanted`, which lie in its ranges, under its token.

    None where it is not known which rows those are: some rows of the group went to the quarantine.
    """
    if sum(r.end - r.first for r in group.ranges) != group.rows:
        return None
    begins, begin = [], 0
    for rows in group.ranges:
        begins.append((rows, begin))
        begin += rows.end - rows.first
    table = pa.ipc.open_stream(group.data).read_all()
    pieces = [
        table.slice(begin + part.first - rows.first, part.end - part.first)
        for part in wanted
        for rows, begin in begins
        if rows.source == part.source and rows.first <= part.first and part.end <= rows.end
    ]
    return encode_group(group.record, group.token, wanted, pa.concat_tables(pieces))


def decode_group(data: bytes) -> InsertGroup:
    """The group whose `data` these bytes are. Raises `CorruptData`."""
    try:
        schema = pa.ipc.open_stream(data).schema
        identity = json.loads((schema.metadata or {})[_METADATA])
        return InsertGroup(
            record=identity["record"],
            token=identity["token"],
            columns=tuple(schema.names),
            ranges=tuple(RowRange(source=s, first=f, end=e) for s, f, e in identity["shares"]),
            rows=int(identity["rows"]),
            data=data,
        )
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"not a group of rows: {error}") from error
