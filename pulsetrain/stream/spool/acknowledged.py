"""How far a spool's entries are delivered, kept in a small file beside its segments."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import xxhash

_POSITION = struct.Struct("<QQ")  # segment, offset
_CHECK = struct.Struct("<Q")  # xxh3-64 of both

Acknowledged = tuple[int, int]
"""Number of a segment and the offset in it up to which everything is delivered."""


def read_acknowledged(folder: Path) -> Acknowledged:
    """What `save_acknowledged` wrote last. (0, 0) where the file is missing or damaged.

    Everything is then sent again, and the other side stores it once.
    """
    try:
        raw = (folder / "acked").read_bytes()
    except OSError:
        return 0, 0
    body, check = raw[: _POSITION.size], raw[_POSITION.size :]
    if len(body) != _POSITION.size or check != _CHECK.pack(xxhash.xxh3_64_intdigest(body)):
        return 0, 0
    number, offset = _POSITION.unpack(body)
    return number, offset


def save_acknowledged(folder: Path, acknowledged: Acknowledged) -> None:
    """Write the file. A disk that does not take it only means that entries are sent again after a restart."""
    body = _POSITION.pack(*acknowledged)
    with contextlib.suppress(OSError):
        (folder / "acked").write_bytes(body + _CHECK.pack(xxhash.xxh3_64_intdigest(body)))
