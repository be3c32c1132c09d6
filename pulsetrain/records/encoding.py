"""The bytes of a batch of columns, on a node's disk and on the wire.

    magic "PTC1" | header bytes u32 | crc32 of the header u32 | header, JSON | body, zlib

The header holds the batch's identity and describes its columns. The body holds one part per column,
little-endian. Whole numbers are stored as the difference to the column's smallest value, in as few bytes
(0, 1, 2, 4 or 8) as the largest difference needs. A column of equal values therefore takes no space.
Times that come in order are stored as the steps between them. A float is stored as the whole number that has
the same bits. Texts are stored as UTF-8, after their lengths.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from pulsetrain.core.errors import CorruptData, SchemaMismatch
from pulsetrain.core.json import refuse_half_pairs
from pulsetrain.records.columns import DTYPES, Array, Column, Columns, Integers, checked_column, record_of
from pulsetrain.records.schema import SCHEMA_VERSION, Kind

MAGIC = b"PTC1"
MAX_ROWS = 1 << 20
"""A batch that claims more rows is corrupt. Equal values take no space, so its size would not limit it."""
MAX_BODY_BYTES = 1 << 28
"""of a batch without its compression, and of its columns in memory"""
_LAST_ROW = 1 << 62

_PREFIX = struct.Struct("<4sII")
_LEVEL = 1  # of zlib: higher ones cost several times as long and save a tenth
_KINDS: Mapping[str, Kind] = MappingProxyType({kind.code: kind for kind in Kind})
_MALFORMED = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error),
    zlib.error,
)

_Packed = tuple[int, int]
"""How whole numbers are stored: bytes per difference, and the smallest value."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a batch says of itself: rows [first_row, first_row + rows) of `record` from `source`.

    `version` is the schema version of its writer.
    """

    record: str
    source: str
    first_row: int
    rows: int
    version: int


class _ColumnHeader(TypedDict):
    name: str
    kind: str
    packed: _Packed
    names: NotRequired[list[str]]
    valid: NotRequired[_Packed]
    text_bytes: NotRequired[int]
    first: NotRequired[int]


class _Header(TypedDict):
    version: int
    record: str
    source: str
    first_row: int
    rows: int
    body_bytes: int
    columns: list[_ColumnHeader]


def encode(batch: Columns, *, source: str, first_row: int) -> bytes:
    """The bytes of a batch. Raises `SchemaMismatch` where its columns are not the record's."""
    target = record_of(batch.record)
    if batch.num_rows > MAX_ROWS:
        raise SchemaMismatch(f"batch of {batch.num_rows} rows; at most {MAX_ROWS}")
    unknown = sorted(set(batch.columns) - set(target.names))
    if unknown:
        raise SchemaMismatch(f"{batch.record} has no column {unknown[0]!r}")
    columns = {f.name: checked_column(target, f, batch.num_rows, batch.columns) for f in target.fields}
    parts: list[bytes] = []
    described = [_write_column(name, column, parts) for name, column in columns.items()]
    body = b"".join(parts)
    header = _Header(
        version=SCHEMA_VERSION,
        record=batch.record,
        source=source,
        first_row=first_row,
        rows=batch.num_rows,
        body_bytes=len(body),
        columns=described,
    )
    head = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((_PREFIX.pack(MAGIC, len(head), zlib.crc32(head)), head, zlib.compress(body, _LEVEL)))


def is_columns(data: bytes) -> bool:
    """Whether `data` begins as `encode` writes it."""
    return data.startswith(MAGIC)


def identify(data: bytes) -> Identity:
    """What a batch says of itself, without reading its rows. Raises `CorruptData`."""
    try:
        return _identity(_header(data)[0])
    except _MALFORMED as error:
        raise CorruptData(f"not a batch of columns: {error}") from error


def decode(data: bytes) -> tuple[Identity, Columns]:
    """The batch in `data`, with the columns that its writer knew. Raises `CorruptData`."""
    try:
        header, end = _header(data)
        identity = _identity(header)
        names = [entry["name"] for entry in header["columns"]]
        if len(set(names)) < len(names) or 8 * len(names) * identity.rows > MAX_BODY_BYTES:
            raise ValueError(f"a column is there twice, or {len(names)} of {identity.rows} rows are too much")
        body = _Body(_inflated(data[end:], header["body_bytes"]), identity.rows)
        columns = {entry["name"]: _read_column(entry, body) for entry in header["columns"]}
        body.check_end()
    except _MALFORMED as error:
        raise CorruptData(f"not a batch of columns: {error}") from error
    return identity, Columns(identity.record, identity.rows, columns)


def _write_column(name: str, column: Column, parts: list[bytes]) -> _ColumnHeader:
    """Add a column's bytes to `parts`; returns its description."""
    described = _ColumnHeader(name=name, kind=column.kind.code, packed=(0, 0))
    if column.kind is Kind.NAME:
        codes, described["names"] = _used(column)
        described["packed"] = _write_integers(codes, parts)
    elif column.kind in (Kind.TEXT, Kind.JSON):
        texts = [text.encode(errors="replace") for text in column.data.tolist()]
        described["packed"] = _write_integers(np.array([len(t) for t in texts], np.int64), parts)
        joined = b"".join(texts)
        parts.append(joined)
        described["text_bytes"] = len(joined)
    elif column.kind is Kind.TIME and _steps_are_smaller(column.integers()):
        described["first"] = int(column.data[0])
        described["packed"] = _write_integers(np.diff(column.integers()), parts)
    else:
        described["packed"] = _write_integers(_bits(column.data), parts)
    if column.valid is not None:
        described["valid"] = _write_integers(_bits(column.valid), parts)
    return described


def _used(column: Column) -> tuple[Integers, list[str]]:
    """Codes and names of a column, without the names that no row holds."""
    codes = column.integers()
    if len(codes) and codes.min() == codes.max():
        return np.zeros(len(codes), np.int64), [column.names[int(codes[0])]]
    used = np.flatnonzero(np.bincount(codes, minlength=len(column.names)))
    if len(used) == len(column.names):
        return codes, list(column.names)
    places = np.zeros(len(column.names), np.int64)
    places[used] = np.arange(len(used))
    return places[codes], [column.names[i] for i in used.tolist()]


def _bits(values: Array) -> Integers:
    """Whole numbers that stand for `values`: a float's is the one of the same bits."""
    if values.dtype.kind == "f":
        return values.view(np.int64)
    return values.astype(np.int64)


def _write_integers(values: Integers, parts: list[bytes]) -> _Packed:
    if not len(values):
        return 0, 0
    low, width = int(values.min()), _width(values)
    if width == 8:
        parts.append(values.astype("<i8", copy=False).tobytes())
        return 8, 0
    if width:
        parts.append((values - low).astype(f"<u{width}").tobytes())
    return width, low


def _width(values: Integers) -> int:
    """Bytes that the difference to the smallest value needs."""
    spread = int(values.max()) - int(values.min())
    return next((width for width in (0, 1, 2, 4) if spread < 1 << 8 * width), 8)


def _steps_are_smaller(times: Integers) -> bool:
    return len(times) > 1 and _width(np.diff(times)) < _width(times)


class _Body:
    """Reads a batch's body from front to back. Raises `ValueError` where it is too short."""

    def __init__(self, data: bytes, rows: int) -> None:
        self._data = data
        self._at = 0
        self.rows = rows

    def integers(self, packed: Sequence[int], count: int | None = None) -> Integers:
        """The next `count` whole numbers; None: one per row."""
        width, low = packed
        count = self.rows if count is None else count
        if width not in (0, 1, 2, 4, 8):
            raise ValueError(f"numbers of {width} bytes")
        if width == 0:
            return np.full(count, low, np.int64)
        kind = "<i8" if width == 8 else f"<u{width}"
        values = np.frombuffer(self._data, kind, count=count, offset=self._at)
        self._at += width * count
        return np.asarray(values, np.int64) if width == 8 else values.astype(np.int64) + low

    def text(self, size: int) -> memoryview:
        """The next `size` bytes."""
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"a text of {size} bytes is longer than the body")
        self._at += size
        return memoryview(self._data)[self._at - size : self._at]

    def check_end(self) -> None:
        """Raise `ValueError` where bytes are left."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")


def _read_column(entry: _ColumnHeader, body: _Body) -> Column:
    kind = _KINDS[entry["kind"]]
    if "first" in entry:
        steps = body.integers(entry["packed"], body.rows - 1)
        times = np.cumsum(np.concatenate([np.array([entry["first"]], np.int64), steps]))
        return Column(kind, times.astype(DTYPES[kind]))
    numbers = body.integers(entry["packed"])
    if kind is Kind.NAME:
        return _read_names(numbers, entry["names"])
    if kind in (Kind.TEXT, Kind.JSON):
        return Column(kind, _read_texts(numbers, body.text(entry["text_bytes"])))
    data = numbers.view(np.float64) if kind in (Kind.F64, Kind.MAYBE) else numbers.astype(DTYPES[kind])
    valid = body.integers(entry["valid"]).astype(np.bool_) if kind is Kind.MAYBE else None
    return Column(kind, data, valid=valid)


def _read_names(codes: Integers, names: list[str]) -> Column:
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a name is no text")
    refuse_half_pairs(names)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(names):
        raise ValueError("a code without a name")
    return Column(Kind.NAME, codes.astype(DTYPES[Kind.NAME]), tuple(names))


def _read_texts(lengths: Integers, data: memoryview) -> npt.NDArray[np.object_]:
    ends = np.cumsum(lengths).tolist()
    if len(ends) and (lengths.min() < 0 or ends[-1] != len(data)):
        raise ValueError("texts do not fill their part of the body")
    texts = np.empty(len(ends), object)
    begin = 0
    for i, end in enumerate(ends):
        texts[i] = str(data[begin:end], "utf-8")
        begin = end
    return texts


def _header(data: bytes) -> tuple[_Header, int]:
    """The header, and where it ends."""
    magic, size, check = _PREFIX.unpack_from(data)
    head = data[_PREFIX.size : _PREFIX.size + size]
    if magic != MAGIC or len(head) != size or zlib.crc32(head) != check:
        raise ValueError("no valid header")
    header: _Header = json.loads(head)
    return header, _PREFIX.size + size


def _identity(header: _Header) -> Identity:
    identity = Identity(
        record=str(header["record"]),
        source=str(header["source"]),
        first_row=int(header["first_row"]),
        rows=int(header["rows"]),
        version=int(header["version"]),
    )
    refuse_half_pairs([identity.record, identity.source])
    if not (0 <= identity.first_row <= _LAST_ROW and 0 <= identity.rows <= MAX_ROWS):
        raise ValueError(f"rows {identity.first_row}..{identity.first_row + identity.rows}")
    return identity


def _inflated(data: bytes, size: int) -> bytes:
    """The body, which has `size` bytes. Never unpacks more than that."""
    if not 0 <= size <= MAX_BODY_BYTES:
        raise ValueError(f"body of {size} bytes, at most {MAX_BODY_BYTES}")
    inflater = zlib.decompressobj()
    body = inflater.decompress(data, size + 1)
    if len(body) != size or not inflater.eof or inflater.unused_data:
        raise ValueError(f"body is not the {size} bytes that the header says")
    return body
