"""A key-value store in a folder of this machine, for one hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import CorruptData, Unavailable
from pulsetrain.core.folder_lock import FolderLock
from pulsetrain.core.private_file import replace_private
from pulsetrain.kv.store import Change, Committed, Compare, Entry, Listing, Write
from pulsetrain.kv.table import Table

FORMAT = 1
STATE = "state.json"


class FileStore:
    """All keys are in one file that each commit writes anew, flushes to the disk and renames.

    So a crash at any moment leaves the state before or after a commit. It is meant for a few thousand short
    values. The folder is held while the store is open. Leases belong to the process: their keys are gone when
    the folder is opened again.

    Raises `UsageError` where another process holds the folder, `CorruptData` where its file is not readable.
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = FolderLock.take(folder, "state")
        self._folder, self._changed = folder, threading.Condition()
        try:
            self._table = _load(folder / STATE)
        except BaseException:
            self._lock.release()
            raise

    def get(self, key: str) -> Entry | None:
        """See `Entries.get`."""
        with self._changed:
            self._expire()
            return self._table.entries.get(key)

    def entries(self, prefix: str) -> Listing:
        """See `Entries.entries`."""
        with self._changed:
            self._expire()
            table = self._table
            keys = sorted(key for key in table.entries if key.startswith(prefix))
            return Listing(entries=tuple(table.entries[k] for k in keys), revision=table.revision)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed:
        """See `Entries.commit`. Returns once the disk has it."""
        with self._changed:
            self._expire()
            after = self._table.copy()
            for lease in {write.lease for write in writes if write.lease}:
                if lease not in after.leases:
                    return Committed(ok=False, revision=after.revision)
            result = after.commit(compares, writes)
            if result.ok:
                self._become(after)
            return result

    def changes(self, prefix: str, *, after: int, timeout_s: float) -> tuple[Change, ...]:
        """See `Watch.changes`."""
        until_s = self._clock.monotonic_s() + timeout_s
        with self._changed:
            while True:
                self._expire()
                found = self._table.changes(prefix, after)
                now_s = self._clock.monotonic_s()
                if found or now_s >= until_s:
                    return found
                ends_s = [lease.ends_s for lease in self._table.leases.values()]
                self._changed.wait(max(min([until_s, *ends_s]) - now_s, 0.001))

    def grant(self, ttl_s: int) -> int:
        """See `Leases.grant`."""
        with self._changed:
            return self._table.grant(ttl_s, self._clock.monotonic_s())

    def keep_alive(self, lease: int) -> float:
        """See `Leases.keep_alive`."""
        with self._changed:
            return self._table.keep_alive(lease, self._clock.monotonic_s())

    def revoke(self, lease: int) -> None:
        """See `Leases.revoke`."""
        with self._changed:
            self._end([lease])

    def close(self) -> None:
        """Release the folder."""
        self._lock.release()

    def _expire(self) -> None:
        overdue = self._table.overdue(self._clock.monotonic_s())
        if overdue:
            self._end(overdue)

    def _end(self, leases: Sequence[int]) -> None:
        after = self._table.copy()
        if after.end(leases):
            self._become(after)
        else:
            self._table = after

    def _become(self, after: Table) -> None:
        if after.revision == self._table.revision:
            return
        try:
            _save(self._folder, after)
        except OSError as error:
            raise Unavailable(f"state folder {self._folder}: {error.strerror}") from error
        self._table = after
        self._changed.notify_all()


def _load(path: Path) -> Table:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Table()
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptData(f"state file {path}: {error}") from error
    try:
        state = json.loads(text)
        if state["format"] != FORMAT:
            raise CorruptData(f"state file {path} has format {state['format']!r}; known: {FORMAT}")
        entries = [
            Entry(key=str(key), value=str(value), created=int(created), modified=int(modified))
            for key, value, created, modified in state["entries"]
        ]
        return Table(entries, int(state["revision"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"state file {path} is damaged: move it away to start without it") from error


def _save(folder: Path, table: Table) -> None:
    entries = [[e.key, e.value, e.created, e.modified] for e in table.entries.values() if not e.lease]
    text = json.dumps({"format": FORMAT, "revision": table.revision, "entries": entries})
    replace_private(folder / STATE, text)
