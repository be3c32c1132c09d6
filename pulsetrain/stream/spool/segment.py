"""The format of a spool's segment file: entries one after another, each checksummed twice.

    magic "PTS1" | payload bytes u32 | rows u32 | xxh3-64 of the payload | xxh3-64 of the header | payload

The header has a checksum of its own so that a damaged payload can be skipped by its length and its rows
counted; where the header itself is damaged the scan looks for the next valid one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

_MAGIC = b"PTS1"
_HEADER = struct.Struct("<4sIIQ")
_CHECK = struct.Struct("<Q")
PREFIX = _HEADER.size + _CHECK.size
"""Bytes in front of each payload."""


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """Where one valid payload lies in its segment, and how many rows it holds."""

    offset: int
    length: int
    rows: int

    @property
    def end(self) -> int:
        """Where the next entry starts."""
        return self.offset + self.length


class _Header(NamedTuple):
    """Bytes, rows and checksum of the payload behind it."""

    length: int
    rows: int
    checksum: int


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a segment holds. `lost_rows` are rows of entries whose header survived their payload;
    `corrupt_regions` counts runs of bytes that belong to no valid entry; `torn` is true where the segment
    ends within an entry."""

    positions: tuple[SegmentPosition, ...]
    lost_rows: int
    corrupt_regions: int
    torn: bool


def frame(payload: bytes, rows: int) -> bytes:
    """The bytes of one entry."""
    header = _HEADER.pack(_MAGIC, len(payload), rows, xxhash.xxh3_64_intdigest(payload))
    return b"".join((header, _CHECK.pack(xxhash.xxh3_64_intdigest(header)), payload))


def payload(entry: bytes) -> bytes | None:
    """The payload of one whole entry as `frame` made it, or None where it is damaged."""
    header = _header(entry, 0)
    if header is None or len(entry) != PREFIX + header.length:
        return None
    data = entry[PREFIX:]
    return data if xxhash.xxh3_64_intdigest(data) == header.checksum else None


def _header(data: bytes, at: int) -> _Header | None:
    """The header at `at`, or None where there is no valid one."""
    raw = data[at : at + PREFIX]
    if len(raw) < PREFIX or not raw.startswith(_MAGIC):
        return None
    if _CHECK.unpack_from(raw, _HEADER.size)[0] != xxhash.xxh3_64_intdigest(raw[: _HEADER.size]):
        return None
    _, length, rows, checksum = _HEADER.unpack_from(raw)
    return _Header(length=length, rows=rows, checksum=checksum)


def scan(data: bytes, start: int = 0) -> Scan:
    """All valid entries from byte `start`, which is the start of an entry."""
    positions: list[SegmentPosition] = []
    at, lost, regions, torn = start, 0, 0, False
    while at < len(data):
        header = _header(data, at)
        if header is None:
            at = _next_header(data, at + 1)
            torn = at == len(data)
            regions += not torn
            continue
        end = at + PREFIX + header.length
        if end <= len(data) and xxhash.xxh3_64_intdigest(data[at + PREFIX : end]) == header.checksum:
            positions.append(SegmentPosition(at + PREFIX, header.length, header.rows))
        else:
            lost += header.rows
            torn = end > len(data)
        at = end
    return Scan(positions=tuple(positions), lost_rows=lost, corrupt_regions=regions, torn=torn)


def _next_header(data: bytes, at: int) -> int:
    """Where the next valid header starts at or after `at`; the end of `data` where there is none."""
    while (at := data.find(_MAGIC, at)) >= 0:
        if _header(data, at) is not None:
            return at
        at += 1
    return len(data)
