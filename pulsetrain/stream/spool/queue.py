"""The on-disk queue between what is measured and the hub: append, read in order, acknowledge.

A spool is a folder of segments (`stream.segment`). A process that dies at any byte loses at most the entry it
was writing: reopening skips what is torn or corrupt, counts it, and goes on behind it. Nothing is ever
appended to a segment of an earlier process.

Durability: a write reaches the kernel at once, so a killed agent loses nothing; `sync` (the shipper calls it
about every second) brings it to the disk, so a power cut costs about a second. No fsync runs in `append`.

Row numbers count per record and only for rows that were written, within a source that is new at every
opening: two different rows never carry the same (source, record, number), whatever was lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import struct
import threading
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog
import xxhash

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.folder_lock import FolderLock
from pulsetrain.records import encoding
from pulsetrain.records.columns import Columns
from pulsetrain.stream.spool import segment

_ACKED = struct.Struct("<QQ")  # segment, offset
_CHECK = struct.Struct("<Q")  # xxh3 of both
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_MAX_REJECTED = 100
_DAMAGE = ("torn_segments", "corrupt_regions")

_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class SpoolConfig:
    """Limits of a spool."""

    max_bytes: int = 1 << 30
    """Total size of all segments; rows beyond it are dropped and counted as `spool_full`."""
    segment_bytes: int = 4 << 20
    """A segment that has grown past this is closed; it is deleted when all of it is acknowledged."""

    def __post_init__(self) -> None:
        if self.segment_bytes < 1 or self.max_bytes < self.segment_bytes:
            raise ValueError(
                f"max_bytes = {self.max_bytes}: must be at least segment_bytes = {self.segment_bytes}"
            )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One spooled batch: `data` as the spool's encoder wrote it. (`segment`, `end`) orders entries."""

    segment: int
    end: int
    rows: int
    data: bytes = field(repr=False)


class Encoder(Protocol):
    """Turns a batch into bytes. Raises `SchemaMismatch`."""

    def __call__(self, batch: Columns, /, *, source: str, first_row: int) -> bytes: ...


class Spool:
    """An on-disk queue of encoded batches. Safe to use from several threads.

    `encode` decides the form of the batches that are appended. A folder may hold batches of another form that
    an earlier version or another transport left there. They are delivered as they are.

    Raises `UsageError` where the folder cannot be created or written, or another process has it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node: str = "local",
        config: SpoolConfig | None = None,
        encode: Encoder = encoding.encode,
    ) -> None:
        self.source = f"{node}/{uuid.uuid4().hex[:16]}"
        self._config = config or SpoolConfig()
        self._encode = encode
        self._folder = folder
        self._held = FolderLock.take(folder, "spool")
        self._arrived = threading.Condition()
        self._next_row: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._index: deque[tuple[int, segment.SegmentPosition]] = deque()
        self._sizes: dict[int, int] = {}
        self._file: int | None = None
        self._dirty = False
        self._acked = self._read_acked()
        self._number = self._acked[0]
        try:
            self._recover()
        except OSError as error:
            self._held.release()
            raise UsageError(f"spool folder {folder}: {error.strerror}") from error

    def append(self, batch: Columns) -> bool:
        """Queue a batch; False where it was dropped. Never raises for the state of the disk; `dropped` says
        what was lost and why."""
        record = batch.record
        if batch.num_rows == 0:
            return True
        with self._arrived:
            try:
                data = self._encode(batch, source=self.source, first_row=self._next_row[record])
            except PulsetrainError as error:
                return self._drop("schema", batch.num_rows, error)
            if self.size_bytes + segment.PREFIX + len(data) > self._config.max_bytes:
                return self._drop("spool_full", batch.num_rows)
            try:
                self._write(data, batch.num_rows)
            except OSError as error:
                reason = "disk_full" if error.errno in _FULL_DISK else "disk_error"
                return self._drop(reason, batch.num_rows, error)
            self._next_row[record] += batch.num_rows
            self._arrived.notify_all()
            return True

    def wait(self, timeout_s: float) -> None:
        """Return at the next append, or after `timeout_s`."""
        with self._arrived:
            self._arrived.wait(timeout_s)

    def pending(self, *, max_bytes: int = 8 << 20) -> list[Entry]:
        """The oldest entries that are not acknowledged, in order: about `max_bytes` of them, at least one
        where there is one. Asking again without `ack` gives the same entries."""
        with self._arrived:
            entries: list[Entry] = []
            total = 0
            for number, place in list(itertools.islice(self._index, 4096)):
                entry = self._read(number, place)
                if entry is not None:
                    entries.append(entry)
                    total += place.length
                if total >= max_bytes:
                    break
            return entries

    def ack(self, entry: Entry) -> None:
        """`entry` and all before it are delivered; segments with nothing left are deleted."""
        with self._arrived:
            done = (entry.segment, entry.end)
            while self._index and (self._index[0][0], self._index[0][1].end) <= done:
                self._index.popleft()
            if done > self._acked:
                self._acked = done
                self._save_acked()
            self._free()

    def reject(self, entry: Entry, why: str) -> None:
        """Set an entry that the other side will never take aside in ``rejected/`` (the last 100 are kept),
        and count its rows. The caller acknowledges it."""
        aside = self._folder / "rejected"
        with self._arrived:
            self._dropped["rejected"] += entry.rows
        _log.warning("spool_rejected", rows=entry.rows, why=why, folder=str(aside))
        try:
            aside.mkdir(exist_ok=True)
            (aside / f"{entry.segment:012d}-{entry.end:012d}.arrow").write_bytes(entry.data)
            for old in sorted(aside.iterdir())[:-_MAX_REJECTED]:
                old.unlink()
        except OSError as error:
            _log.warning("spool_rejected_not_kept", folder=str(aside), error=str(error))

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows lost since opening, by reason: spool_full, disk_full, disk_error, schema, corrupt, rejected;
        beside them `torn_segments` and `corrupt_regions`, damage whose rows nobody can know any more."""
        with self._arrived:
            return dict(self._dropped)

    @property
    def dropped_rows(self) -> int:
        """All rows known to be lost since opening."""
        return sum(n for reason, n in self.dropped.items() if reason not in _DAMAGE)

    @property
    def size_bytes(self) -> int:
        """Size of all segments on disk."""
        return sum(self._sizes.values())

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return len(self._index)

    def sync(self) -> None:
        """Bring what was appended to the disk."""
        with self._arrived:
            if self._file is None or not self._dirty:
                return
            self._dirty = False
            file = os.dup(self._file)
        try:
            with contextlib.suppress(OSError):  # the append that follows meets the same disk and counts
                os.fdatasync(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Bring everything to the disk and give the folder up. Idempotent."""
        self.sync()
        with self._arrived:
            self._close_file()
            self._held.release()

    # What follows runs under the lock.

    def _recover(self) -> None:
        """Index what an earlier process left; count what is damaged."""
        for path in sorted(self._folder.glob("*.seg")):
            number = int(path.stem)
            self._number = max(self._number, number)
            data = path.read_bytes()
            self._sizes[number] = len(data)
            if number < self._acked[0]:
                continue
            found = segment.scan(data, self._acked[1] if number == self._acked[0] else 0)
            self._index.extend((number, place) for place in found.places)
            self._count_damage(path, found)
        self._free()

    def _count_damage(self, path: Path, found: segment.Scan) -> None:
        if not (found.torn or found.lost_rows or found.corrupt_regions):
            return
        self._dropped["corrupt"] += found.lost_rows
        self._dropped["torn_segments"] += found.torn
        self._dropped["corrupt_regions"] += found.corrupt_regions
        _log.warning(
            "spool_damaged",
            path=str(path),
            rows=found.lost_rows,
            torn=found.torn,
            regions=found.corrupt_regions,
        )

    def _drop(self, reason: str, rows: int, error: Exception | None = None) -> bool:
        if not self._dropped[reason]:
            _log.warning("spool_dropping", folder=str(self._folder), reason=reason, error=str(error or ""))
        self._dropped[reason] += rows
        return False

    def _write(self, data: bytes, rows: int) -> None:
        if self._file is None or self._sizes[self._number] >= self._config.segment_bytes:
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
        self._sizes[self._number] = size + len(entry)
        self._index.append((self._number, segment.SegmentPosition(size + segment.PREFIX, len(data), rows)))
        self._dirty = True

    def _undo(self, size: int) -> None:
        """Cut a half-written entry off; where even that fails, start another segment behind it."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self._close_file()

    def _open_next(self) -> None:
        self._close_file()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path(self._number + 1), flags, 0o600)
        self._number += 1
        self._sizes[self._number] = 0
        self._free()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _read(self, number: int, place: segment.SegmentPosition) -> Entry | None:
        """The entry at `place`; None, counted and forgotten, where it can no longer be read."""
        try:
            with self._path(number).open("rb") as file:
                file.seek(place.offset - segment.PREFIX)
                data = segment.payload(file.read(segment.PREFIX + place.length))
        except OSError:
            data = None
        if data is None:
            self._index.remove((number, place))
            self._drop("corrupt", place.rows)
            return None
        return Entry(segment=number, end=place.end, rows=place.rows, data=data)

    def _free(self) -> None:
        """Delete segments that hold no entry any more, except the one that is being written."""
        oldest = self._index[0][0] if self._index else self._number + (self._file is None)
        for number in [n for n in self._sizes if n < oldest]:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._path(number).unlink()
                except OSError as error:
                    _log.warning("spool_segment_stays", path=str(self._path(number)), error=str(error))
                    continue
            del self._sizes[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.seg"

    def _read_acked(self) -> tuple[int, int]:
        try:
            raw = (self._folder / "acked").read_bytes()
        except OSError:
            return 0, 0
        body, check = raw[: _ACKED.size], raw[_ACKED.size :]
        if check != _CHECK.pack(xxhash.xxh3_64_intdigest(body)) or len(body) != _ACKED.size:
            return 0, 0  # sent again, and recognised as stored
        number, offset = _ACKED.unpack(body)
        return number, offset

    def _save_acked(self) -> None:
        body = _ACKED.pack(*self._acked)
        with contextlib.suppress(OSError):  # unsaved only means sent again after a restart
            (self._folder / "acked").write_bytes(body + _CHECK.pack(xxhash.xxh3_64_intdigest(body)))
