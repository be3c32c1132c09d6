"""A checkpoint that the training script wrote or read by itself, as one cell of page 0 of its rank's ring.

A cell is 512 bytes: a checksum of the rest, seven words, and a path in UTF-8 that ends with a zero byte. The
rank stores the whole cell whenever a file is complete. A rank that is killed while it stores leaves a
checksum that does not fit, and the reader says that there is none.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from mmap import mmap

CELL_BYTES = 512
_HEAD = struct.Struct("<8q")
_WORD = struct.Struct("<q")
MAX_PATH_BYTES = CELL_BYTES - _HEAD.size - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCell:
    """One checkpoint of one rank.

    `step` is the last step that it contains, -1 while that is unknown. `bytes` is what its files hold on
    disk, and `files` counts them. Times are on the ring's clock. `path` is the newest file or the folder, cut
    to `MAX_PATH_BYTES`. `file_bytes` and `file_mtime_ns` are its size and time of change. They tell the file
    even after it was renamed.
    """

    step: int
    bytes: int
    files: int
    start_ns: int
    end_ns: int
    path: str
    file_bytes: int
    file_mtime_ns: int


def write_cell(memory: mmap | bytearray, at: int, cell: CheckpointCell) -> None:
    """Store the cell at byte `at` of the ring's memory. Takes a microsecond, and no lock."""
    text = cell.path.encode(errors="surrogateescape")[:MAX_PATH_BYTES]
    numbers = (cell.step, cell.bytes, cell.files, cell.start_ns, cell.end_ns)
    packed = _HEAD.pack(0, *numbers, cell.file_bytes, cell.file_mtime_ns) + text
    packed = packed.ljust(CELL_BYTES, b"\0")
    memory[at : at + CELL_BYTES] = _WORD.pack(_checksum(packed)) + packed[_WORD.size :]


def read_cell(memory: mmap | bytearray, at: int) -> CheckpointCell | None:
    """Return the cell at byte `at`. None if nothing was stored, or if the writer died while it stored."""
    packed = bytes(memory[at : at + CELL_BYTES])
    checksum, *numbers = _HEAD.unpack_from(packed)
    if not checksum or checksum != _checksum(packed):
        return None
    step, size, files, start, end, file_bytes, file_mtime = numbers
    return CheckpointCell(
        step=step,
        bytes=size,
        files=files,
        start_ns=start,
        end_ns=end,
        path=packed[_HEAD.size :].partition(b"\0")[0].decode(errors="ignore"),
        file_bytes=file_bytes,
        file_mtime_ns=file_mtime,
    )


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return the path as a cell stores it: absolute, and cut to `MAX_PATH_BYTES`.

    A name with a scheme, such as s3://bucket/key, stays as it is.
    """
    text = os.fspath(path)
    full = text if "://" in text else os.path.abspath(text)
    return full.encode(errors="surrogateescape")[:MAX_PATH_BYTES].decode(errors="ignore")


def _checksum(packed: bytes) -> int:
    """Checksum of all but the first word. Never 0, which means that nothing was stored."""
    return zlib.crc32(packed[_WORD.size :]) + 1
