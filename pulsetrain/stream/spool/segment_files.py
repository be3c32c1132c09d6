"""The segment files of one spool: entries are appended to the newest, and whole files are deleted.

Nothing is ever appended to a segment of an earlier process. Not thread-safe: the spool holds a lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from pulsetrain.stream.spool import segment
from pulsetrain.stream.spool.acknowledged import Acknowledged
from pulsetrain.stream.spool.segment import Scan, SegmentPosition

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EntryPosition:
    """Where one entry lies: number of its segment, and its position there."""

    segment: int
    position: SegmentPosition

    @property
    def end(self) -> Acknowledged:
        """What is acknowledged when this entry and all before it are delivered."""
        return self.segment, self.position.end


class SegmentFiles:
    """Writes, reads and deletes the segments in `folder`. A segment that has grown past `segment_bytes` is
    closed."""

    def __init__(self, folder: Path, segment_bytes: int, first: int) -> None:
        """New segments are numbered after `first` and after those that `scan` finds."""
        self._folder, self._segment_bytes = folder, segment_bytes
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._number, self._path = first, self.path(first)
        self._file: int | None = None
        self._unsynced: set[Path] = set()

    @property
    def size_bytes(self) -> int:
        """Size of all segments. Any thread may ask."""
        return self._size_bytes

    def scan(self, delivered: Acknowledged) -> Iterator[tuple[int, Scan]]:
        """What is not delivered of the segments of an earlier process, oldest first. Raises `OSError`."""
        for path in sorted(self._folder.glob("*.seg")):
            number = int(path.stem)
            self._number = max(self._number, number)
            data = path.read_bytes()
            self._grow(number, len(data))
            if number >= delivered[0]:
                yield number, segment.scan(data, delivered[1] if number == delivered[0] else 0)

    def append(self, data: bytes, rows: int) -> EntryPosition:
        """Write one entry. Raises `OSError`, and then nothing of it is left."""
        if self._file is None or self._sizes[self._number] >= self._segment_bytes:
            self._open_next()
        assert self._file is not None
        size = self._sizes[self._number]
        entry = segment.frame(data, rows)
        try:
            if os.write(self._file, entry) < len(entry):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - one path undoes both
        except OSError:
            self._undo(size)
            raise
        self._grow(self._number, len(entry))
        self._unsynced.add(self._path)
        position = SegmentPosition(size + segment.PREFIX, len(data), rows)
        return EntryPosition(self._number, position)

    def read(self, entry: EntryPosition) -> bytes | None:
        """The payload of an entry. None where it is damaged or its segment is missing.

        Raises `OSError` where the disk does not answer now. The entry may be read later.
        """
        try:
            with self.path(entry.segment).open("rb") as file:
                file.seek(entry.position.offset - segment.PREFIX)
                return segment.payload(file.read(segment.PREFIX + entry.position.length))
        except FileNotFoundError:
            return None

    def delete_before(self, oldest: int | None) -> None:
        """Delete the segments before number `oldest`. None: all but the one that is being written."""
        end = oldest if oldest is not None else self._number + (self._file is None)
        for number in [number for number in self._sizes if number < end]:
            try:
                self.path(number).unlink(missing_ok=True)
                self._unsynced.discard(self.path(number))
            except OSError as error:
                _log.warning("spool_segment_stays", path=str(self.path(number)), error=str(error))
                continue
            self._size_bytes -= self._sizes.pop(number)

    def take_unsynced(self) -> set[Path]:
        """The segments of which the disk may lack bytes, and the folder if it has new ones. The caller syncs
        them."""
        paths, self._unsynced = self._unsynced, set()
        return paths

    def still_unsynced(self, paths: Iterable[Path]) -> None:
        """Take back what could not be synced."""
        self._unsynced.update(paths)

    def close(self) -> None:
        """Close the newest segment. Idempotent."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def path(self, number: int) -> Path:
        """The file of a segment."""
        return self._folder / f"{number:012d}.seg"

    def _open_next(self) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC
        number = self._number + 1
        while self._file is None:
            try:
                self._file = os.open(self.path(number), flags, 0o600)
            except FileExistsError:  # of someone else: it stays as it is
                number += 1
        self._number, self._path = number, self.path(number)
        self._unsynced.add(self._folder)
        self._grow(self._number, 0)

    def _grow(self, number: int, by_bytes: int) -> None:
        self._sizes[number] = self._sizes.get(number, 0) + by_bytes
        self._size_bytes += by_bytes

    def _undo(self, size: int) -> None:
        """Cut a half-written entry off. Where even that fails, start another segment behind it."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self.close()


def sync_to_disk(path: Path) -> None:
    """Bring a segment or a folder to the disk. One that is gone needs nothing. Raises `OSError`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)
