"""The on-disk queue between what is measured and the hub: append, read in order, acknowledge.

A spool is a folder of segments (`spool.segment_files`). A process that dies at any byte loses at most the
entry that it was writing. Reopening skips what is torn or corrupt, counts it, and goes on behind it.

Durability: a write reaches the kernel at once, so a killed agent loses nothing. `sync` brings all that was
written to the disk. The shipper calls it about once a second, but not while it waits for the hub. So a power
cut usually costs about a second (see docs/stream.md). No fsync runs in `append`.

Row numbers count per record, and only rows that were written. The source is new at every opening. Two
different rows therefore never have the same (source, record, number), whatever was lost.
"""

from __future__ import annotations

import errno
import itertools
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.folder_lock import FolderLock
from pulsetrain.records import encoding
from pulsetrain.records.columns import Columns
from pulsetrain.stream.spool import segment
from pulsetrain.stream.spool.acknowledged import read_acknowledged, save_acknowledged
from pulsetrain.stream.spool.segment import Scan
from pulsetrain.stream.spool.segment_files import EntryPosition, SegmentFiles, sync_to_disk

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
UNREADABLE_S = 600.0  # after which a disk that answers for other entries will not answer for this one
_MAX_REJECTED = 100
_MAX_ENTRIES = 4096  # of one look at what is pending
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

    `dropped`, `dropped_rows`, `size_bytes`, `backlog`, `wait` and `wake` return although the disk hangs. All
    other methods wait for it.

    `encode` decides the form of the batches that are appended. A folder may hold batches of another form that
    an earlier version or another transport left there. They are delivered as they are.

    Raises `UsageError` where the folder cannot be created or written. Raises `FolderInUse` where another
    process has it.
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
        self._folder_lock = FolderLock.take(folder, "spool")
        self._disk = threading.RLock()
        self._appended = threading.Condition()
        self._next_row: Counter[str] = Counter()
        self._dropped: Mapping[str, int] = {}
        self._index: deque[EntryPosition] = deque()
        self._unread: tuple[EntryPosition, float] | None = None  # the oldest one, and since when
        self._acknowledged = read_acknowledged(folder)
        self._files = SegmentFiles(folder, self._config.segment_bytes, self._acknowledged[0])
        try:
            for number, scan in self._files.scan(self._acknowledged):
                self._index.extend(EntryPosition(number, position) for position in scan.positions)
                self._count_damage(number, scan)
        except OSError as error:
            self._folder_lock.release()
            raise UsageError(f"spool folder {folder}: {error.strerror}") from error
        self._files.delete_before(_oldest(self._index))

    def append(self, batch: Columns) -> bool:
        """Queue a batch; False where it was dropped. Never raises for the state of the disk; `dropped` says
        what was lost and why."""
        record, rows = batch.record, batch.num_rows
        if rows == 0:
            return True
        with self._disk:
            try:
                data = self._encode(batch, source=self.source, first_row=self._next_row[record])
            except PulsetrainError as error:
                return self._drop("schema", rows, error)
            if self.size_bytes + segment.PREFIX + len(data) > self._config.max_bytes:
                return self._drop("spool_full", rows)
            try:
                self._index.append(self._files.append(data, rows))
            except OSError as error:
                reason = "disk_full" if error.errno in _FULL_DISK else "disk_error"
                return self._drop(reason, rows, error)
            self._next_row[record] += rows
            self._files.delete_before(_oldest(self._index))
        self.wake()
        return True

    def wait(self, timeout_s: float) -> None:
        """Return at the next append, or after `timeout_s`."""
        with self._appended:
            self._appended.wait(timeout_s)

    def wake(self) -> None:
        """End every `wait`."""
        with self._appended:
            self._appended.notify_all()

    def pending(self, *, max_bytes: int = 8 << 20) -> list[Entry]:
        """The oldest entries that are not acknowledged, in order: about `max_bytes` of them, at least one
        where there is one. Asking again without `ack` gives the same entries.

        Raises `OSError` where the oldest entry cannot be read now. It stays, and may be read later. After
        `UNREADABLE_S` it is given up, as one that is damaged.
        """
        with self._disk:
            entries: list[Entry] = []
            total = 0
            for where in list(itertools.islice(self._index, _MAX_ENTRIES)):
                try:
                    entry = self._read(where)
                except OSError:
                    if entries:
                        break
                    if not self._is_unreadable(where):
                        raise
                    self._forget_damaged(where)
                    continue
                if entry is not None:
                    entries.append(entry)
                    total += len(entry.data)
                if total >= max_bytes:
                    break
            return entries

    def ack(self, entry: Entry) -> None:
        """`entry` and all before it are delivered. Segments with nothing left are deleted."""
        with self._disk:
            delivered = (entry.segment, entry.end)
            while self._index and self._index[0].end <= delivered:
                self._index.popleft()
            if delivered > self._acknowledged:
                self._acknowledged = delivered
                save_acknowledged(self._folder, delivered)
            self._files.delete_before(_oldest(self._index))

    def reject(self, entry: Entry, why: str) -> None:
        """Set an entry that the other side will never take aside in ``rejected/`` (the last 100 are kept),
        and count its rows. The caller acknowledges it."""
        aside = self._folder / "rejected"
        with self._disk:
            self._count(rejected=entry.rows)
        _log.warning("spool_rejected", rows=entry.rows, why=why, folder=str(aside))
        try:
            aside.mkdir(exist_ok=True)
            (aside / f"{entry.segment:012d}-{entry.end:012d}.batch").write_bytes(entry.data)
            for old in sorted(aside.iterdir())[:-_MAX_REJECTED]:
                old.unlink()
        except OSError as error:
            _log.warning("spool_rejected_not_kept", folder=str(aside), error=str(error))

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows lost since opening, by reason: spool_full, disk_full, disk_error, schema, corrupt, rejected;
        beside them `torn_segments` and `corrupt_regions`, damage whose rows nobody can know any more."""
        return self._dropped

    @property
    def dropped_rows(self) -> int:
        """All rows known to be lost since opening."""
        return sum(n for reason, n in self.dropped.items() if reason not in _DAMAGE)

    @property
    def size_bytes(self) -> int:
        """Size of all segments on disk."""
        return self._files.size_bytes

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return len(self._index)

    def sync(self) -> None:
        """Bring what was appended to the disk. What does not succeed is tried again by the next call."""
        with self._disk:
            paths = self._files.take_unsynced()
        failed = []
        for path in paths:
            try:
                sync_to_disk(path)
            except OSError:  # the append that follows meets the same disk and counts
                failed.append(path)
        with self._disk:
            self._files.still_unsynced(failed)

    def close(self) -> None:
        """Bring everything to the disk and give the folder up. Idempotent."""
        self.sync()
        with self._disk:
            self._files.close()
            self._folder_lock.release()

    # The methods that follow run under the lock `_disk`.

    def _count_damage(self, number: int, scan: Scan) -> None:
        if not (scan.torn or scan.lost_rows or scan.corrupt_regions):
            return
        self._count(corrupt=scan.lost_rows, torn_segments=scan.torn, corrupt_regions=scan.corrupt_regions)
        _log.warning(
            "spool_damaged",
            path=str(self._files.path(number)),
            rows=scan.lost_rows,
            torn=scan.torn,
            regions=scan.corrupt_regions,
        )

    def _count(self, **lost: int) -> None:
        """Add to `dropped`. The mapping is replaced, so whoever reads it needs no lock."""
        before = self._dropped
        self._dropped = {**before, **{why: before.get(why, 0) + n for why, n in lost.items() if n}}

    def _drop(self, reason: str, rows: int, error: Exception | None = None) -> bool:
        if reason not in self._dropped:
            _log.warning("spool_dropping", folder=str(self._folder), reason=reason, error=str(error or ""))
        self._count(**{reason: rows})
        return False

    def _read(self, where: EntryPosition) -> Entry | None:
        """The entry there. None, counted and forgotten, where it is damaged. Raises `OSError`."""
        data = self._files.read(where)
        rows = where.position.rows
        if data is None:
            self._forget_damaged(where)
            return None
        return Entry(segment=where.segment, end=where.position.end, rows=rows, data=data)

    def _forget_damaged(self, where: EntryPosition) -> None:
        self._index.remove(where)
        self._drop("corrupt", where.position.rows)

    def _is_unreadable(self, where: EntryPosition) -> bool:
        """Whether this entry could not be read for so long that it never will be."""
        if self._unread is None or self._unread[0] != where:
            self._unread = where, time.monotonic()
        return time.monotonic() - self._unread[1] >= UNREADABLE_S


def _oldest(index: deque[EntryPosition]) -> int | None:
    """The segment of the oldest entry that is not acknowledged."""
    return index[0].segment if index else None
