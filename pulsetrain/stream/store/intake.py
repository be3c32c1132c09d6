"""Batches into the store: many by one insert, each row once, whatever is sent twice.

A submitted batch waits until 5,000 rows of its record have gathered, or 0.4 s; then one insert stores them
all, and only then the senders hear so. (An insert costs about 6 ms whether it holds 100 rows or 5,000.)

Each row once: the row ranges stored of each (source, record) are kept in memory and saved in the store about
every second. What a killed hub had not saved is in the journal, whose groups are inserted again under their
deduplication token at the next start. Where it stays open whether an insert happened, the same group is tried
again before anything else of that record.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError, SchemaMismatch, Unavailable
from pulsetrain.records import ddl
from pulsetrain.records.batch import Batch
from pulsetrain.stream.ingest_metrics import IntakeMetrics
from pulsetrain.stream.queries.storage import stored_ranges
from pulsetrain.stream.store import quarantine
from pulsetrain.stream.store.clickhouse import Store, ipc
from pulsetrain.stream.store.journal import Group, Journal, Share, make_group
from pulsetrain.stream.store.ranges import Ranges

_log = structlog.get_logger()
_RANGES = pa.schema(
    [("source", pa.string()), ("record", pa.string()), ("first_row", pa.uint64()), ("next_row", pa.uint64())]
)


@dataclass(frozen=True, kw_only=True)
class IntakeConfig:
    """How batches gather."""

    linger_s: float = 0.4
    """Longest time a batch waits for others."""
    group_rows: int = 5_000
    """Rows of one record that are stored at once without waiting."""
    save_s: float = 1.0
    """How often ranges are saved."""


@dataclass
class _Gathering:
    """What waits of one record."""

    since_s: float = 0.0
    rows: int = 0
    waiting: list[tuple[Batch, Future[int]]] = field(default_factory=list)


class Intake:
    """Stores batches. `submit` may be called from any thread; `run` belongs to one, which `start` makes."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        clock: Clock,
        config: IntakeConfig | None = None,
        metrics: IntakeMetrics | None = None,
    ) -> None:
        self.metrics = metrics or IntakeMetrics()
        self._store = store
        self._journal = Journal(folder)
        self._clock = clock
        self._config = config or IntakeConfig()
        self._arrived = threading.Condition()
        self._gathering: dict[str, _Gathering] = {}
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._ranges: defaultdict[tuple[str, str], Ranges] = defaultdict(Ranges)
        self._open: dict[str, Group] = {}
        self._unsaved: dict[tuple[str, str, int], int] = {}
        self._unsaved_groups: list[str] = []
        self._saved_s = clock.monotonic_s()
        self._recover()

    def start(self) -> None:
        """Begin to store what is submitted."""
        self._thread.start()

    def submit(self, batch: Batch) -> Future[int]:
        """Store the batch's rows that are not stored yet. The result is their number, and comes when they can
        be queried; its exception is `Unavailable` where they may not be stored."""
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()  # a sender that leaves does not stop its rows
        with self._arrived:
            gathering = self._gathering.get(batch.record)
            if gathering is None:
                gathering = self._gathering[batch.record] = _Gathering(since_s=self._clock.monotonic_s())
            gathering.waiting.append((batch, future))
            gathering.rows += batch.rows
            self.metrics.waiting.inc(batch.rows)
            self._arrived.notify_all()
        return future

    def close(self) -> None:
        """Store what waits, save the ranges and end. Idempotent."""
        with self._arrived:
            self._stop = True
            self._arrived.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=30.0)
        self.run(everything=True)
        self._save()

    def run(self, *, everything: bool = False) -> None:
        """Store what is due, or everything that waits; save the ranges when it is time."""
        for record, gathering in self._due(everything).items():
            self.metrics.waiting.dec(gathering.rows)
            self._store_all(record, gathering.waiting)
        if self._clock.monotonic_s() - self._saved_s >= self._config.save_s:
            self._save()

    def _run(self) -> None:
        while not self._stop:
            with self._arrived:
                if not self._gathering:
                    self._arrived.wait(self._config.save_s)
                elif not any(self._is_due(g) for g in self._gathering.values()):
                    self._arrived.wait(self._config.linger_s / 8)
            self.run()

    def _is_due(self, gathering: _Gathering) -> bool:
        age_s = self._clock.monotonic_s() - gathering.since_s
        return gathering.rows >= self._config.group_rows or age_s >= self._config.linger_s

    def _due(self, everything: bool) -> dict[str, _Gathering]:
        with self._arrived:
            due = {r: g for r, g in self._gathering.items() if everything or self._is_due(g)}
            for record in due:
                del self._gathering[record]
            return due

    def _store_all(self, record: str, waiting: Sequence[tuple[Batch, Future[int]]]) -> None:
        """Store one group and answer for each of its batches."""
        try:
            self._finish_open(record)
            counts = self._store_rows(record, [batch for batch, _ in waiting])
        except SchemaMismatch as error:
            if len(waiting) == 1:
                waiting[0][1].set_exception(error)
                return
            for alone in waiting:  # one batch that the engine cannot read does not hold up the others
                self._store_all(record, [alone])
        except (PulsetrainError, OSError) as error:
            _log.warning("batches_not_stored", record=record, batches=len(waiting), error=str(error))
            for _, future in waiting:
                future.set_exception(Unavailable(str(error)))
        except Exception as error:  # noqa: BLE001 - edge of a thread: every sender hears, and sends again
            _log.exception("batches_not_stored", record=record, batches=len(waiting))
            for _, future in waiting:
                future.set_exception(Unavailable(f"{type(error).__name__}: {error}"))
        else:
            for (batch, future), count in zip(waiting, counts, strict=True):
                self._count(batch, count)
                future.set_result(count)

    def _store_rows(self, record: str, batches: Sequence[Batch]) -> list[int]:
        """Store by one insert what of `batches` is not stored yet; how many rows of each that was."""
        shares, pieces, counts = self._new_rows(batches)
        if pieces:
            kept = self._without_absurd(record, shares, pieces)
            self._insert(make_group(record, uuid.uuid4().hex, shares, pa.concat_tables(kept)))
        return counts

    def _count(self, batch: Batch, stored: int) -> None:
        self.metrics.rows.labels(batch.record).inc(stored)
        self.metrics.repeated.labels(batch.record).inc(batch.rows - stored)
        self.metrics.seen.labels(batch.source.partition("/")[0]).set(self._clock.wall_ns() / 1e9)

    def _without_absurd(
        self, record: str, shares: Sequence[Share], pieces: Sequence[pa.Table]
    ) -> list[pa.Table]:
        """`pieces` without the rows whose time cannot be true, which go to the quarantine table."""
        now_ns = self._clock.wall_ns()
        split = [quarantine.split(record, piece, now_ns) for piece in pieces]
        asides = [
            quarantine.Aside(record=record, source=share.source, first_row=share.first, rows=odd)
            for share, (_, odd) in zip(shares, split, strict=True)
            if odd.num_rows
        ]
        if asides:
            rows = sum(aside.rows.num_rows for aside in asides)
            _log.warning("rows_quarantined", record=record, rows=rows, source=asides[0].source)
            table = quarantine.table(asides)
            self._store.insert_raw(ddl.QUARANTINE, table.column_names, ipc(table), token=None)
            self.metrics.quarantined.labels(record).inc(rows)
        return [kept for kept, _ in split]

    def _new_rows(self, batches: Sequence[Batch]) -> tuple[list[Share], list[pa.Table], list[int]]:
        """What of `batches` is not stored yet: its shares, its rows, and how many rows of each batch."""
        shares: list[Share] = []
        pieces: list[pa.Table] = []
        counts: list[int] = []
        tentative: defaultdict[str, Ranges] = defaultdict(Ranges)
        for batch in batches:
            known = self._ranges[(batch.source, batch.record)]
            count = 0
            for low, high in known.missing(batch.first_row, batch.first_row + batch.rows):
                for first, end in tentative[batch.source].missing(low, high):
                    shares.append(Share(source=batch.source, first=first, end=end))
                    pieces.append(batch.table.slice(first - batch.first_row, end - first))
                    count += end - first
                tentative[batch.source].add(low, high)
            counts.append(count)
        return shares, pieces, counts

    def _insert(self, group: Group) -> None:
        self._journal.write(group)
        self._open[group.record] = group
        self._finish_open(group.record)

    def _finish_open(self, record: str) -> None:
        """Insert the group of which it is not known whether it is stored; nothing where there is none."""
        group = self._open.get(record)
        if group is None:
            return
        try:
            if group.rows:
                with self.metrics.insert(record):
                    self._store.insert_raw(record, group.columns, group.data, token=group.token)
        except SchemaMismatch:
            del self._open[record]
            self._journal.forget(group.token)
            raise
        del self._open[record]
        self._unsaved_groups.append(group.token)
        for share in group.shares:
            first, end = self._ranges[(share.source, record)].add(share.first, share.end)
            self._unsaved[(share.source, record, first)] = end

    def _recover(self) -> None:
        for row in stored_ranges(self._store).to_pylist():
            self._ranges[(row["source"], row["record"])].add(row["first_row"], row["next_row"])
        for group in self._journal.kept():
            self._open[group.record] = group
            try:
                self._finish_open(group.record)
            except SchemaMismatch as error:  # its senders were never told that it is stored
                _log.warning("journal_refused", record=group.record, error=str(error))
        self._save()

    def _save(self) -> None:
        """Save the ranges that the store does not have yet, then forget the groups they came from."""
        self._saved_s = self._clock.monotonic_s()
        if not self._unsaved:
            return
        columns = [*zip(*self._unsaved, strict=True), tuple(self._unsaved.values())]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _RANGES, strict=True)], schema=_RANGES)
        try:
            self._store.insert_raw(ddl.OFFSETS, _RANGES.names, ipc(table), token=None)
        except PulsetrainError as error:
            _log.warning("ranges_not_saved", error=str(error), ranges=len(self._unsaved))
            return
        for token in self._unsaved_groups:
            self._journal.forget(token)
        self._unsaved.clear()
        self._unsaved_groups.clear()
