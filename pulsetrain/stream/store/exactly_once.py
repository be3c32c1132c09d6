"""Each row into the store once, whatever is sent twice and whoever is killed. HTTP and Kafka both use this.

Batches become one insert under one deduplication token. Two things make a row stored once:

1. The row ranges that are stored of each (source, record) are known and saved in the store (`ddl.OFFSETS`).
   Rows that come again are left out.
2. An insert that may or may not have happened is repeated with the same rows under the same token. The store
   drops it where it happened. Something outside must remember the insert over a crash: a `Journal` keeps its
   rows (HTTP), or the offsets in Kafka say which messages it was made of.

The ranges are saved after the insert. What a crash loses of them, the repeated insert makes good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import SchemaMismatch
from pulsetrain.records import ddl
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.batch import Batch
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.store import quarantine
from pulsetrain.stream.store.clickhouse import ipc
from pulsetrain.stream.store.insert_group import InsertGroup, RowRange, encode_group, part_of
from pulsetrain.stream.store.journal import Journal
from pulsetrain.stream.store.node_times import NodeTimes
from pulsetrain.stream.store.refused_rows import RefusedRows
from pulsetrain.stream.store.row_store import RowStore
from pulsetrain.stream.store.stored_rows import Claim, StoredRows, node_of, ranges_table

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class PreparedInsert:
    """One insert that is ready: what `ExactlyOnceWriter.prepare` made of some batches."""

    group: InsertGroup
    claims: tuple[Claim, ...]
    quarantined: pa.Table | None = None
    """Rows for the quarantine table."""
    quarantined_rows: int = 0
    new_rows: tuple[int, ...] = ()
    """How many rows of each batch are not stored yet, in the order of the batches."""
    repeated_rows: int = 0
    sources: frozenset[str] = frozenset()


class ExactlyOnceWriter:
    """Makes inserts of batches and does them.

    `load`, `recover`, `prepare` and `discard` belong to one thread, `insert` and `save_ranges` to one
    thread. The two may differ, so that the next insert is prepared while one is on its way. Inserts happen
    in the order in which they were prepared. The store remembers tokens for `remembered_s`, None: for ever.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        metrics: IngestMetrics,
        journal: Journal | None = None,
        *,
        remembered_s: float | None = None,
    ) -> None:
        self._store, self._clock, self._metrics, self._journal = store, clock, metrics, journal
        self._remembered_s = remembered_s
        self._stored, self._times = StoredRows(clock), NodeTimes(clock)
        self._unsaved: dict[tuple[str, str, int], int] = {}
        self._unsaved_tokens: list[str] = []
        self._rows = RefusedRows(store, clock, metrics, journal, self._part_stored)

    def load(self) -> None:
        """Read again which rows are stored. Nothing may be on its way into the store."""
        self._stored.load(self._store)

    def recover(self) -> None:
        """Read which rows are stored, then finish the inserts that an earlier process left in the journal.

        Not those older than the store remembers tokens: it would store again what it has. Whose rows it does
        not have was not told that they are stored, and sends them again.
        """
        self.load()
        since_ns = self._clock.wall_ns() - int(self._remembered_s * 1e9) if self._remembered_s else 0
        for group in self._journal.read_all(since_ns) if self._journal else ():
            self._recover_group(group)
        self.save_ranges()

    def _recover_group(self, group: InsertGroup) -> None:
        claims = [c for rows in group.ranges for c in self._stored.claim(group.record, rows)]
        prepared = PreparedInsert(group=self._new_part(group, claims), claims=tuple(claims))
        if not claims:
            self.discard(prepared)  # its ranges are saved, so it was stored
            return
        try:
            self.insert(prepared)
        except SchemaMismatch as error:  # no sender was told that these rows are stored
            log.warning("journal_refused", record=group.record, error=str(error))
            self.discard(prepared)

    def _new_part(self, group: InsertGroup, claims: Sequence[Claim]) -> InsertGroup:
        """What of a group is not stored. Another hub may have stored the rest since, under its own token.

        The token stays: where the group's insert has happened, the store drops the part too.
        """
        new = [c.rows for c in claims]
        if not new or sum(r.end - r.first for r in new) == sum(r.end - r.first for r in group.ranges):
            return group
        part = part_of(group, new)
        log.warning("journal_partly_stored", record=group.record, rows=group.rows, cut=part is not None)
        return part or group

    def prepare(self, record: str, batches: Sequence[Batch], token: str) -> PreparedInsert:
        """One insert of the rows of `batches` (all of `record`) that are not stored or on their way yet.

        From here on they count as stored, until `discard`. Raises `SchemaMismatch` where one insert cannot
        hold these rows.
        """
        for node in self._stored.forget_old():
            self._metrics.forget(node)
        claims = [self._claim(record, batch) for batch in batches]
        try:
            return self._prepared(record, batches, claims, token)
        except BaseException as error:
            self._stored.release(record, [c for each in claims for c in each])
            if isinstance(error, pa.ArrowException) and not isinstance(error, MemoryError | OSError):
                raise SchemaMismatch(f"{record}: {error}") from error
            raise

    def insert(self, prepared: PreparedInsert) -> None:
        """Store the rows. After any failure it may be called again with the same argument.

        Raises `SchemaMismatch` where the engine cannot read the rows, which then are not stored. Raises
        `Unavailable`, `Refused` or `OSError` (journal) where it may work later. What is refused for long is
        stored in parts, and single rows go to the quarantine: see `RefusedRows`.
        """
        group, aside = prepared.group, 0
        if prepared.claims:
            self._insert_quarantined(prepared)
            aside = self._insert_group(group)
            self._unsaved_tokens.append(group.token)
        for claim in prepared.claims:
            self._unsaved[(claim.merged.source, group.record, claim.merged.first)] = claim.merged.end
        self._count(prepared, aside)

    def discard(self, prepared: PreparedInsert) -> None:
        """Give up an insert that did not happen and will not: its rows are no longer known."""
        self._stored.release(prepared.group.record, prepared.claims)
        self._rows.forget(prepared.group.token)
        self._rows.forget(_aside(prepared.group.token))
        if self._journal is not None:
            self._journal.forget(prepared.group.token)

    def save_ranges(self) -> None:
        """Save the ranges of what was inserted, then forget the journal's groups. Raises as `insert` does."""
        if self._unsaved:
            table = ranges_table(self._unsaved)
            self._store.insert_raw(ddl.OFFSETS, table.column_names, ipc(table), token=None)
            self._unsaved.clear()
        if self._journal is not None:
            for token in self._unsaved_tokens:
                self._journal.forget(token)
        self._unsaved_tokens.clear()

    def _claim(self, record: str, batch: Batch) -> list[Claim]:
        rows = RowRange(source=batch.source, first=batch.first_row, end=batch.first_row + batch.rows)
        return self._stored.claim(record, rows)

    def _prepared(
        self, record: str, batches: Sequence[Batch], claims: Sequence[Sequence[Claim]], token: str
    ) -> PreparedInsert:
        pieces = [_piece(batch, c.rows) for batch, each in zip(batches, claims, strict=True) for c in each]
        kept, quarantined = quarantine.separate(record, pieces, self._times.now_ns(record, pieces))
        table = pa.concat_tables(kept) if kept else arrow_schema(record).empty_table()
        new_rows = tuple(sum(c.rows.end - c.rows.first for c in each) for each in claims)
        ranges = [c.rows for each in claims for c in each]
        return PreparedInsert(
            group=encode_group(record, token, ranges, table, _kept(ranges, quarantined)),
            claims=tuple(c for each in claims for c in each),
            quarantined=quarantine.table(quarantined) if quarantined else None,
            quarantined_rows=sum(each.rows.num_rows for each in quarantined),
            new_rows=new_rows,
            repeated_rows=sum(batch.rows for batch in batches) - sum(new_rows),
            sources=frozenset(batch.source for batch in batches),
        )

    def _insert_group(self, group: InsertGroup) -> int:
        """Store the rows of a group. Returns how many of them the store refuses and are set aside."""
        if group.rows:
            return self._rows.insert(group)
        if self._journal is not None:
            self._journal.write(group)
        return 0

    def _part_stored(self, part: InsertGroup) -> None:
        """A part of an insert is done with, while the others are not."""
        for rows in part.ranges:
            name = (rows.source, part.record, rows.first)
            self._unsaved[name] = max(self._unsaved.get(name, 0), rows.end)
        self._unsaved_tokens.append(part.token)
        if self._journal is None:
            self.save_ranges()

    def _insert_quarantined(self, prepared: PreparedInsert) -> None:
        rows = prepared.quarantined
        if rows is not None:
            self._rows.quarantine(_aside(prepared.group.token), rows)

    def _count(self, prepared: PreparedInsert, aside: int) -> None:
        record, metrics = prepared.group.record, self._metrics
        metrics.rows.labels(record).inc(prepared.group.rows - aside if prepared.claims else 0)
        metrics.repeated.labels(record).inc(prepared.repeated_rows)
        for source in prepared.sources:
            metrics.seen.labels(node_of(source)).set(self._clock.wall_ns() / 1e9)
        if prepared.quarantined_rows:
            metrics.quarantined.labels(record).inc(prepared.quarantined_rows)
            names = sorted(prepared.sources)
            log.warning("rows_quarantined", record=record, rows=prepared.quarantined_rows, source=names[0])


def _aside(token: str) -> str:
    """The token of an insert's rows for the quarantine."""
    return f"{token}:quarantine"


def _kept(ranges: Sequence[RowRange], quarantined: Sequence[quarantine.Quarantined]) -> Sequence[RowRange]:
    """What of the ranges does not go to the quarantine."""
    if not quarantined:
        return ranges
    runs = {(each.source, each.first_row): each.kept for each in quarantined}
    return [
        RowRange(source=r.source, first=first, end=end)
        for r in ranges
        for first, end in runs.get((r.source, r.first), ((r.first, r.end),))
    ]


def _piece(batch: Batch, rows: RowRange) -> quarantine.Piece:
    table = batch.table.slice(rows.first - batch.first_row, rows.end - rows.first)
    return quarantine.Piece(source=rows.source, first_row=rows.first, rows=table)
