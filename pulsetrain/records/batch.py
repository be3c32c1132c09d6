"""A batch as the hub handles it: an Arrow table of one record, and its bytes.

Two forms of bytes are read. Kafka carries Arrow IPC streams (zstd, the identity in the schema's metadata).
Agents send what `records.encoding` writes. The identity (source, record, first row, rows) makes a batch that
arrives twice recognisable in both forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsetrain.core.errors import CorruptData, SchemaMismatch
from pulsetrain.records import encoding
from pulsetrain.records.arrow import (
    ArrowColumn,
    DictionaryColumn,
    arrow_type,
    dictionary_array,
    number_array,
    schema_of,
    to_table,
)
from pulsetrain.records.columns import Columns, record_of
from pulsetrain.records.encoding import Identity
from pulsetrain.records.ipc_size import unpacked_bytes
from pulsetrain.records.schema import SCHEMA_VERSION, Field, Kind, Record

_VERSION = b"pulsetrain.version"
_SOURCE = b"pulsetrain.source"
_RECORD = b"pulsetrain.record"
_FIRST = b"pulsetrain.first_row"
_ROWS = b"pulsetrain.rows"
MAX_BYTES = 1 << 30
"""of an Arrow IPC stream without its compression"""
_UNREADABLE = (pa.ArrowException, OSError, ValueError, EOFError)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A decoded batch. `table` has the Arrow schema of the record; `first_row` counts from 0 within
    (source, record); `version` is the schema version of the writer."""

    record: str
    source: str
    first_row: int
    version: int
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def token(self) -> str:
        """The insert deduplication token: equal for equal rows, different for all others."""
        return token(self.source, self.record, self.first_row, self.rows)


def token(source: str, record: str, first_row: int, rows: int) -> str:
    """The deduplication token of rows [first_row, first_row + rows) of one source's record."""
    return f"{source}:{record}:{first_row}:{rows}"


def encode(record: str, batch: pa.RecordBatch | pa.Table, *, source: str, first_row: int) -> bytes:
    """The bytes of a batch whose columns are already the record's (see `records.arrow.arrow_schema`).

    Raises `SchemaMismatch` where they are not.
    """
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    table = conform(table, record_of(record), SCHEMA_VERSION)
    schema = table.schema.with_metadata(
        {
            _VERSION: str(SCHEMA_VERSION),
            _SOURCE: source,
            _RECORD: record,
            _FIRST: str(first_row),
            _ROWS: str(table.num_rows),
        }
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for chunk in table.unify_dictionaries().combine_chunks().to_batches():
            writer.write_batch(chunk.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())


def encode_columns(batch: Columns, *, source: str, first_row: int) -> bytes:
    """The bytes of an agent's batch as an Arrow IPC stream. Raises `SchemaMismatch`."""
    return encode(batch.record, to_table(batch), source=source, first_row=first_row)


def as_arrow_ipc(data: bytes) -> bytes:
    """`data` as an Arrow IPC stream, whichever form it has. Raises `CorruptData` or `SchemaMismatch`."""
    if not encoding.is_columns(data):
        return data
    batch = decode(data)
    return encode(batch.record, batch.table, source=batch.source, first_row=batch.first_row)


def decode(data: bytes) -> Batch:
    """The batch in `data`. Columns that an older writer lacked hold their defaults, columns that only a newer
    writer knows are dropped. Raises `CorruptData` or `SchemaMismatch`."""
    identity, table = _read(data)
    return Batch(
        record=identity.record,
        source=identity.source,
        first_row=identity.first_row,
        version=identity.version,
        table=conform(table, record_of(identity.record), identity.version),
    )


def _read(data: bytes) -> tuple[Identity, pa.Table]:
    if encoding.is_columns(data):
        identity, columns = encoding.decode(data)
        return identity, to_table(columns)
    if unpacked_bytes(data) > MAX_BYTES:
        raise CorruptData(f"batch is larger than {MAX_BYTES} bytes without its compression")
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except _UNREADABLE as error:
        raise CorruptData(f"not an Arrow IPC stream: {error}") from error
    identity = _identity(table.schema)
    if table.num_rows > encoding.MAX_ROWS:
        raise CorruptData(f"batch of {table.num_rows} rows; at most {encoding.MAX_ROWS}")
    if identity.rows != table.num_rows or identity.first_row < 0:
        raise CorruptData(f"batch of {identity.record} says {identity.rows} rows and holds {table.num_rows}")
    return identity, table


def identify(data: bytes) -> Identity:
    """What the batch in `data` says of itself, without reading its rows. Raises `CorruptData`."""
    if encoding.is_columns(data):
        return encoding.identify(data)
    try:
        schema = pa.ipc.open_stream(data).schema
    except _UNREADABLE as error:
        raise CorruptData(f"not an Arrow IPC stream: {error}") from error
    return _identity(schema)


def _identity(schema: pa.Schema) -> Identity:
    meta: Mapping[bytes, bytes] = schema.metadata or {}
    try:
        return Identity(
            record=meta[_RECORD].decode(),
            source=meta[_SOURCE].decode(),
            first_row=int(meta[_FIRST]),
            rows=int(meta[_ROWS]),
            version=int(meta[_VERSION]),
        )
    except (KeyError, ValueError) as error:
        raise CorruptData(f"batch without a valid identity in its metadata: {error}") from error


def conform(table: pa.Table, record: Record, version: int) -> pa.Table:
    """`table`, written at schema `version`, with exactly the record's columns in their order.

    Raises `SchemaMismatch` for a wrong type, a null where none may be, a column that this version of the
    writer must have sent, or one that it cannot have known.
    """
    if version <= SCHEMA_VERSION:
        unknown = sorted(set(table.column_names) - set(record.names))
        if unknown:
            raise SchemaMismatch(f"{record.name} has no column {unknown[0]!r} in schema version {version}")
    columns = [_column(table, record, field, version) for field in record.fields]
    return pa.table(columns, schema=schema_of(record))


def _column(table: pa.Table, record: Record, field: Field, version: int) -> ArrowColumn:
    where = f"{record.name}.{field.name}"
    indices = table.schema.get_all_field_indices(field.name)
    if not indices and field.since > version:
        return _constant(field, field.default, table.num_rows)
    if len(indices) != 1:
        raise SchemaMismatch(f"{where} is {'missing' if not indices else 'there twice'}")
    column = table.column(indices[0])
    if column.type != arrow_type(field.kind):
        raise SchemaMismatch(f"{where} is {column.type}; it must be {arrow_type(field.kind)}")
    column = _unambiguous(column) if pa.types.is_dictionary(column.type) else column
    if column.null_count and field.kind is not Kind.MAYBE:
        raise SchemaMismatch(f"{where} holds nulls; only {Kind.MAYBE.clickhouse} columns may")
    return column


def _unambiguous(column: ArrowColumn) -> ArrowColumn:
    """A dictionary column whose dictionaries hold each value once and no null, as ClickHouse requires."""
    dictionaries = [cast(DictionaryColumn, chunk).dictionary for chunk in column.chunks]
    if all(d.null_count == 0 and len(pc.unique(d)) == len(d) for d in dictionaries):
        return column
    plain = column.cast(column.type.value_type)
    return pc.dictionary_encode(plain).cast(column.type)


def _constant(field: Field, value: object, rows: int) -> ArrowColumn:
    kind = arrow_type(field.kind)
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([dictionary_array(np.zeros(rows, np.int32), [str(value)])])
    return pa.chunked_array([pa.array([value], kind).take(number_array(np.zeros(rows, np.int64)))])


def adopt(record: str, table: pa.Table, *, now_ns: int) -> pa.Table:
    """A table from elsewhere (Parquet of other tools) in the record's schema.

    Takes plain strings for dictionaries, integers and floats of other widths, timestamps of other units or
    without a zone (then UTC), and integers as UTC nanoseconds. A missing column or a null becomes the field's
    default, a missing time `now_ns`; columns of the sorting key must be there. Columns that the record does
    not have are left out. Raises `SchemaMismatch`.
    """
    target = record_of(record)
    columns = [_adopted(table, target, field, now_ns) for field in target.fields]
    return pa.table(columns, schema=schema_of(target))


def _adopted(table: pa.Table, record: Record, field: Field, now_ns: int) -> ArrowColumn:
    where = f"{record.name}.{field.name}"
    fallback = now_ns if field.kind is Kind.TIME else field.default
    if field.name not in table.column_names:
        if field.name in record.order_by:
            raise SchemaMismatch(f"{where} is missing; needed: {', '.join(record.order_by)}")
        return _constant(field, fallback, table.num_rows)
    try:
        column = _cast(table.column(field.name), arrow_type(field.kind), fallback, field.kind is Kind.MAYBE)
    except (pa.ArrowException, ValueError) as error:
        line = str(error).splitlines()[0]
        raise SchemaMismatch(
            f"{where}: {table.schema.field(field.name).type} does not fit: {line}"
        ) from error
    return column


def _cast(column: ArrowColumn, kind: pa.DataType, fallback: object, nullable: bool) -> ArrowColumn:
    if column.type == kind and (nullable or not column.null_count):
        return column
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_timestamp(plain) and pa.types.is_timestamp(column.type) and column.type.tz is None:
        column = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
    if pa.types.is_timestamp(plain) and pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    column = column.cast(plain)
    if not nullable and column.null_count:
        column = column.fill_null(pa.scalar(fallback, plain))
    return pc.dictionary_encode(column) if pa.types.is_dictionary(kind) else column
