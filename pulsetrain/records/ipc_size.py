"""How large an Arrow IPC stream is without its compression, read without unpacking it.

Each compressed buffer begins with its size, and Arrow allocates that much before it unpacks. Where the
buffers lie stands in the metadata of their message, a flatbuffer (`Message.fbs` of Arrow).
"""

from __future__ import annotations

import struct

import pyarrow as pa

from pulsetrain.core.errors import CorruptData

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # of the union MessageHeader
_BUFFER = struct.Struct("<qq")
_UNREADABLE = (struct.error, IndexError, pa.ArrowException, OSError, ValueError, EOFError)


def unpacked_bytes(data: bytes) -> int:
    """The bytes of all buffers in memory. Raises `CorruptData` where `data` is no Arrow IPC stream."""
    try:
        messages = pa.ipc.MessageReader.open_stream(data)
        return sum(_of_message(memoryview(m.metadata), memoryview(m.body)) for m in messages if m.body)
    except _UNREADABLE as error:
        raise CorruptData(f"not an Arrow IPC stream: {error}") from error


def _of_message(metadata: memoryview, body: memoryview) -> int:
    message = _follow(metadata, 0)
    kind, batch = _field(metadata, message, 1), _field(metadata, message, 2)
    if not kind or not batch or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    table = _follow(metadata, batch)
    if metadata[kind] == _DICTIONARY_BATCH:
        table = _follow(metadata, _field(metadata, table, 1))
    buffers, is_compressed = _field(metadata, table, 2), bool(_field(metadata, table, 3))
    if not buffers:
        return 0
    vector = _follow(metadata, buffers)
    (count,) = struct.unpack_from("<I", metadata, vector)
    places = _BUFFER.iter_unpack(metadata[vector + 4 : vector + 4 + count * _BUFFER.size])
    return sum(_of_buffer(body, start, size, is_compressed) for start, size in places)


def _of_buffer(body: memoryview, start: int, size: int, is_compressed: bool) -> int:
    unpacked = int(struct.unpack_from("<q", body, start)[0]) if is_compressed and size else size
    if unpacked == -1:  # this buffer was left as it is
        return size
    if size < 0 or unpacked < 0:
        raise ValueError(f"a buffer of {min(size, unpacked)} bytes")
    return unpacked


def _follow(metadata: memoryview, at: int) -> int:
    """Where the offset at `at` leads."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where a field of a table lies, 0 where it has its default."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0
