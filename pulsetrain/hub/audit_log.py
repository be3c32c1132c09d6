"""The file in which a hub keeps every event of its jobs as a chain of hashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from pulsetrain.records.audit_chain import Head, Verified, record, verify

log = structlog.get_logger()

NAME = "audit.log"
KEPT = 10_000  # events that wait for the disk
TAIL_BYTES = 1 << 20  # read at the start to find the last record


class AuditLog:
    """Appends events to a file. One thread calls it.

    While the disk refuses, the newest 10,000 events wait for the next call. `lost` counts those that did not
    fit, and those that no record can hold.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._head: Head | None = None  # None: the file must be looked at
        self._waiting: list[Mapping[str, object]] = []
        self._first_seq: int | None = None  # of the first that waits, if a write of it has begun

    @property
    def waiting(self) -> int:
        """How many events the disk has not taken so far."""
        return len(self._waiting)

    def append(self, events: Iterable[Mapping[str, object]] = ()) -> None:
        """Write what waits, then the events, and return once they are on disk. Never raises `OSError`."""
        new = list(events)
        self._waiting += new
        if not self._waiting:
            return
        try:
            self._write_waiting()
        except OSError as error:
            self._head = None
            if new:  # the next tries are silent
                log.warning("audit_waits", path=str(self._path), records=self.waiting, error=str(error))
            self._drop_oldest(self.waiting - KEPT)

    def _write_waiting(self) -> None:
        head = self._head
        if head is None:
            head = _end_of(self._path)
            if self._first_seq is not None:  # the write that failed may have got so far
                del self._waiting[: max(0, head.seq + 1 - self._first_seq)]
        self._first_seq, begun = head.seq + 1, self._waiting
        lines, self._waiting = [], []
        for event in begun:
            try:
                line, behind = record(event, head)
                lines.append(f"{line}\n".encode())
            except (TypeError, ValueError) as error:
                self._count_lost(1, str(error))
            else:
                head = behind
                self._waiting.append(event)
        _write(self._path, b"".join(lines))
        self._head, self._first_seq = head, None
        self._waiting.clear()
        log.info("audit_head", records=head.seq + 1, hash=head.hash)

    def _drop_oldest(self, count: int) -> None:
        if count > 0:
            del self._waiting[:count]
            self._first_seq = None if self._first_seq is None else self._first_seq + count
            self._count_lost(count, "too many wait for the disk")

    def _count_lost(self, count: int, why: str) -> None:
        self.lost += count
        log.error("audit_lost", path=str(self._path), records=count, why=why)


def verify_file(path: Path, noted: str = "") -> Verified:
    """Whether a log is as it was written, see `audit_chain.verify`. Raises `OSError`."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return verify(text.splitlines(), noted, ends_open=not text.endswith("\n"))


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _end_of(path: Path) -> Head:
    """The last whole record of the file. What a crash left behind it is cut off: it was never complete."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            tail, length = b"", TAIL_BYTES
            while tail.count(b"\n") < 2 and len(tail) < size:  # a record may be longer than usual
                file.seek(max(0, size - length))
                tail, length = file.read(), 4 * length
            whole, newline, torn = tail.rpartition(b"\n")
            if torn:
                file.truncate(size - len(torn))
    except FileNotFoundError:
        return Head()
    last = whole.rpartition(b"\n")[2].decode(errors="replace") if newline else ""
    return verify([last]).head if last else Head()
