"""Batches into the store, each row once, whatever is sent twice.

Two things recognise a row that came before. The row ranges stored of each (source, record) are kept in memory
and written to the store about every second; and each insert carries a deduplication token, which the table
remembers for its last 10,000 inserts, so that the second of ranges that a killed hub had not written is
covered too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import structlog

from pulsetrain.stream import ddl
from pulsetrain.stream.batch import Batch, token
from pulsetrain.stream.errors import PulsetrainError
from pulsetrain.stream.queries.storage import stored_ranges
from pulsetrain.stream.ranges import Ranges
from pulsetrain.stream.store import Store, ipc

_SAVE_S = 1.0
_log = structlog.get_logger()

_RANGES = pa.schema(
    [("source", pa.string()), ("record", pa.string()), ("first_row", pa.uint64()), ("next_row", pa.uint64())]
)


@dataclass
class _Seen:
    """What has arrived of one (source, record). Its lock makes two copies of a batch wait for each other."""

    ranges: Ranges = field(default_factory=Ranges)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Intake:
    """Stores batches. Safe to use from many threads. `monotonic` is seconds."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._seen: dict[tuple[str, str], _Seen] | None = None
        self._unsaved: dict[tuple[str, str, int], int] = {}
        self._saved_s = monotonic()

    def accept(self, batch: Batch) -> int:
        """Store the batch's rows that are not stored yet and return their number. When it returns they can be
        queried. Raises `Unavailable` or another `PulsetrainError` where they may not be stored."""
        seen = self._of(batch)
        stored = 0
        with seen.lock:
            for first, end in seen.ranges.missing(batch.first_row, batch.first_row + batch.rows):
                rows = batch.table.slice(first - batch.first_row, end - first)
                mark = token(batch.source, batch.record, first, end - first)
                self._store.insert(batch.record, rows, token=mark)
                self._note(batch, *seen.ranges.add(first, end))
                stored += end - first
        self._save_if_due()
        return stored

    def save(self) -> None:
        """Write the ranges that the store does not have yet."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
            self._saved_s = self._monotonic()
        if not unsaved:
            return
        columns = [*zip(*unsaved, strict=True), tuple(unsaved.values())]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _RANGES, strict=True)], schema=_RANGES)
        try:
            self._store.insert_raw(ddl.OFFSETS, _RANGES.names, ipc(table), token=None)
        except PulsetrainError as error:
            _log.warning("ranges_not_saved", error=str(error), ranges=len(unsaved))
            with self._lock:
                self._unsaved = unsaved | self._unsaved

    def _of(self, batch: Batch) -> _Seen:
        with self._lock:
            if self._seen is None:
                self._seen = self._load()
            return self._seen.setdefault((batch.source, batch.record), _Seen())

    def _load(self) -> dict[tuple[str, str], _Seen]:
        seen: dict[tuple[str, str], _Seen] = {}
        for row in stored_ranges(self._store).to_pylist():
            known = seen.setdefault((row["source"], row["record"]), _Seen())
            known.ranges.add(row["first_row"], row["next_row"])
        return seen

    def _note(self, batch: Batch, first: int, end: int) -> None:
        with self._lock:
            self._unsaved[(batch.source, batch.record, first)] = end

    def _save_if_due(self) -> None:
        if self._monotonic() - self._saved_s < _SAVE_S or not self._saving.acquire(blocking=False):
            return
        try:
            self.save()
        finally:
            self._saving.release()
