"""One turn of ingest: ranges of Kafka's offsets made into inserts, each row once.

What is made ready here is stored later, by another thread; what a turn holds counts as stored for the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import CorruptData, SchemaMismatch
from pulsetrain.records import ddl
from pulsetrain.records.batch import Batch, decode
from pulsetrain.stream.ingest_metrics import IntakeMetrics
from pulsetrain.stream.kafka.partition_buffer import Range
from pulsetrain.stream.queries.storage import stored_ranges
from pulsetrain.stream.store import quarantine
from pulsetrain.stream.store.clickhouse import Store, whole
from pulsetrain.stream.store.ranges import Ranges

Bury = Callable[[Any, str], None]
"""Sends a message that cannot be read to the dead letters, with the reason."""

_RANGES = pa.schema(
    [("source", pa.string()), ("record", pa.string()), ("first_row", pa.uint64()), ("next_row", pa.uint64())]
)


@dataclass(frozen=True, kw_only=True)
class Insert:
    """One insert: rows for a table. `record` is what they count as; "": nothing."""

    table: str
    record: str
    rows: pa.Table
    token: str | None


@dataclass(frozen=True, kw_only=True)
class InsertBatch:
    """Inserts in their order and the ranges they store; the row ranges are saved last."""

    ranges: Sequence[Range]
    inserts: Sequence[Insert]

    def store(
        self, store: Store, metrics: IntakeMetrics, insist: Callable[[Callable[[], None]], None]
    ) -> None:
        """Do every insert; `insist` decides what a failure means."""
        for insert in self.inserts:
            insist(lambda insert=insert: _store(store, metrics, insert))  # type: ignore[misc]  # bound early


def _store(store: Store, metrics: IntakeMetrics, insert: Insert) -> None:
    if insert.record:
        with metrics.insert(insert.record):
            store.insert_table(insert.table, insert.rows, token=insert.token)
        metrics.rows.labels(insert.record).inc(insert.rows.num_rows)
    else:
        store.insert_table(insert.table, insert.rows, token=insert.token)


class BatchBuilder:
    """Makes turns; knows which rows of every source are stored or on their way."""

    def __init__(
        self, record_of: Callable[[str], str], bury: Bury, clock: Clock, metrics: IntakeMetrics
    ) -> None:
        self._record_of, self._bury = record_of, bury
        self._clock, self._metrics = clock, metrics
        self._ranges: defaultdict[tuple[str, str], Ranges] = defaultdict(Ranges)

    def learn(self, store: Store) -> None:
        """Read again what is stored; nothing may be on its way."""
        self._ranges.clear()
        for row in stored_ranges(store).to_pylist():
            self._ranges[(row["source"], row["record"])].add(row["first_row"], row["next_row"])

    def turn(self, ranges: Sequence[Range]) -> InsertBatch:
        """The inserts of `ranges`, one for each that holds new rows."""
        inserts: list[Insert] = []
        grown: dict[tuple[str, str, int], int] = {}
        for each in ranges:
            inserts += self._range(each, grown)
        if grown:
            inserts.append(_saved(grown))
        return InsertBatch(ranges=ranges, inserts=inserts)

    def _range(self, each: Range, grown: dict[tuple[str, str, int], int]) -> list[Insert]:
        record = self._record_of(each.partition.topic)
        pieces: list[pa.Table] = []
        for message in each.messages:
            batch = self._read(record, message)
            if batch is not None:
                pieces += self._new(batch, grown)
        return self._inserts(record, pa.concat_tables(pieces), each.token) if pieces else []

    def _new(self, batch: Batch, grown: dict[tuple[str, str, int], int]) -> list[pa.Table]:
        """The rows of a batch that are not stored yet; from here on they count as stored."""
        known = self._ranges[(batch.source, batch.record)]
        gaps = known.missing(batch.first_row, batch.first_row + batch.rows)
        for low, high in gaps:
            first, end = known.add(low, high)
            grown[(batch.source, batch.record, first)] = end
        self._metrics.repeated.labels(batch.record).inc(batch.rows - sum(high - low for low, high in gaps))
        self._metrics.seen.labels(batch.source.partition("/")[0]).set(self._clock.wall_ns() / 1e9)
        return [batch.table.slice(low - batch.first_row, high - low) for low, high in gaps]

    def _inserts(self, record: str, table: pa.Table, token: str) -> list[Insert]:
        kept, odd = quarantine.split(record, table, self._clock.wall_ns())
        made = []
        if odd.num_rows:
            aside = quarantine.Aside(record=record, source=token, first_row=0, rows=odd)
            made.append(_insert(ddl.QUARANTINE, quarantine.table([aside]), f"{token}:quarantine"))
            self._metrics.quarantined.labels(record).inc(odd.num_rows)
        if kept.num_rows:
            made.append(_insert(record, kept, token, record))
        return made

    def _read(self, record: str, message: Any) -> Batch | None:
        """The batch of a message; one that cannot be read goes to the dead letters with the reason."""
        try:
            batch = decode(message.value or b"")
        except (CorruptData, SchemaMismatch) as error:
            self._bury(message, str(error))
            return None
        if batch.record != record:
            self._bury(message, f"a batch of {batch.record}")
            return None
        return batch


def _insert(name: str, rows: pa.Table, token: str | None, record: str = "") -> Insert:
    return Insert(table=name, record=record, rows=whole(rows), token=token)


def _saved(grown: Mapping[tuple[str, str, int], int]) -> Insert:
    """The insert of row ranges; written again it changes nothing, so that it needs no token."""
    columns = [*zip(*grown, strict=True), tuple(grown.values())]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _RANGES, strict=True)], schema=_RANGES)
    return _insert(ddl.OFFSETS, table, None)
