"""The file in which a hub keeps every event of its jobs as a chain of hashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from pulsetrain.records.audit_chain import Head, Verified, record, verify

log = structlog.get_logger()

NAME = "audit.log"
TAIL_BYTES = 1 << 20  # read at the start to find the last record


class AuditLog:
    """Appends events to a file. One thread calls it. A disk that refuses loses records, which are counted."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._head: Head | None = None

    def append(self, events: Iterable[Mapping[str, object]]) -> None:
        """Write the events and wait until they are on disk. Never raises `OSError`."""
        events = list(events)
        try:
            head = self._head if self._head is not None else _end_of(self._path)
            lines = []
            for event in events:
                line, head = record(event, head)
                lines.append(line + "\n")
            _write(self._path, "".join(lines))
        except OSError as error:
            self.lost += len(events)
            self._head = None  # a part may be written: look at the file again
            log.warning("audit_lost", path=str(self._path), records=len(events), error=str(error))
        else:
            self._head = head
            log.info("audit_head", records=head.seq + 1, hash=head.hash)


def verify_file(path: Path, noted: str = "") -> Verified:
    """Whether a log is as it was written, see `audit_chain.verify`. Raises `OSError`."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return verify(text.splitlines(), noted, ends_open=not text.endswith("\n"))


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


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
