"""Kafka to the store, each row once: a consumer group whose replays repeat their inserts exactly.

What one insert holds is decided before it happens and kept by Kafka itself: the offsets' commit carries the
end of the range in its metadata. So whoever takes over after a crash repeats the very same range under the
very same deduplication token (topic, partition, offsets), and the store drops it where it was stored already:

    1. commit (start, "to end")      2. insert [start, end)      3. save row ranges      4. commit (end, "")

A message that was produced twice is another matter: it has other offsets and the same rows. Those are found
by the row ranges of its source, which the store keeps (`ddl.OFFSETS`); a source's messages share a key, so
one partition, so one consumer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from pulsetrain.stream import ddl, quarantine
from pulsetrain.stream.batch import Batch, decode
from pulsetrain.stream.clock import Clock
from pulsetrain.stream.errors import CorruptData, PulsetrainError, SchemaMismatch
from pulsetrain.stream.kafka import KafkaConfig, client_options, create_topics, one_line_errors, record_of
from pulsetrain.stream.metrics import IntakeMetrics
from pulsetrain.stream.queries.storage import stored_ranges
from pulsetrain.stream.ranges import Ranges
from pulsetrain.stream.schema import RECORDS
from pulsetrain.stream.store import Store, ipc

log = structlog.get_logger()

_RANGES = pa.schema(
    [("source", pa.string()), ("record", pa.string()), ("first_row", pa.uint64()), ("next_row", pa.uint64())]
)
_INTENT = "to "


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """Table ``[ingest]``, environment ``PULSETRAIN_INGEST_*``."""

    group: str = "pulsetrain"
    """Consumer group; processes of one group share the partitions."""
    member: str = ""
    """Name of this process in the group; with a stable name a restart gets its partitions back at once."""
    rows: int = 200_000
    """Rows that are stored at once without waiting; never below 5,000 while the wait is not over."""
    linger_s: float = 0.5
    """Longest wait for more rows."""
    metrics_host: str = "127.0.0.1"
    """Address that `--metrics-port` listens on; metrics ask for no password."""
    retry_s: float = 1.0
    """Pause before a failed insert is tried again."""

    def __post_init__(self) -> None:
        if self.rows < 5_000:
            raise ValueError(f"rows = {self.rows}: allowed 5000 or more")
        if not 0 < self.linger_s <= 60:
            raise ValueError(f"linger_s = {self.linger_s}: allowed above 0 to 60")


@dataclass
class Lane:
    """What waits of one partition. `until` ends a range that must be repeated as it was; -1: none."""

    until: int = -1
    messages: list[Any] = field(default_factory=list)

    def ready(self, rows: int) -> list[Any]:
        """The messages of the next insert: a range to repeat alone and whole, else about `rows` rows."""
        if self.until < 0 or (self.messages and self.messages[0].offset >= self.until):
            return self._first(rows)  # nothing to repeat, or the broker has already forgotten it
        inside = [m for m in self.messages if m.offset < self.until]
        return inside if inside and inside[-1].offset == self.until - 1 else []

    def _first(self, rows: int) -> list[Any]:
        """As many messages as hold `rows` rows: what is inserted at once is what memory is needed for."""
        before = itertools.accumulate((_rows(m) for m in self.messages), initial=0)
        return [m for m, held in zip(self.messages, before, strict=False) if held < rows]

    def take(self, messages: Sequence[Any]) -> None:
        """Forget messages that are stored."""
        del self.messages[: len(messages)]
        self.until = -1


@dataclass(frozen=True)
class Range:
    """The offsets [start, end) of one partition and their messages."""

    partition: TopicPartition
    messages: Sequence[Any]

    @property
    def start(self) -> int:
        return int(self.messages[0].offset)

    @property
    def end(self) -> int:
        return int(self.messages[-1].offset) + 1

    @property
    def token(self) -> str:
        """The deduplication token of this range's insert."""
        return f"{self.partition.topic}:{self.partition.partition}:{self.start}-{self.end}"


class Ingest:
    """One member of the consumer group. `run` until `stop` is called from another thread or a signal."""

    def __init__(
        self,
        kafka: KafkaConfig,
        store: Store,
        clock: Clock,
        config: IngestConfig | None = None,
        metrics: IntakeMetrics | None = None,
    ) -> None:
        self.metrics = metrics or IntakeMetrics()
        self._kafka, self._store, self._clock = kafka, store, clock
        self._config = config or IngestConfig()
        self._stop = threading.Event()
        self._lanes: dict[TopicPartition, Lane] = {}
        self._ranges: defaultdict[tuple[str, str], Ranges] = defaultdict(Ranges)
        self._new: set[TopicPartition] = set()
        self._rows = 0
        self._since_s = 0.0
        create_topics(kafka)
        with one_line_errors(kafka):
            self._consumer = self._subscribe()
        self._dead: Any = None

    def stop(self) -> None:
        """Store what is gathered and end."""
        self._stop.set()

    def run(self) -> None:
        """Take messages until stopped. Raises `Unavailable`, `AuthError` or `UsageError` of Kafka."""
        try:
            with one_line_errors(self._kafka):
                while not self._stop.is_set():
                    self.poll()
                while self._rows and self._flush():
                    pass
        finally:
            self._consumer.close(autocommit=False, timeout_ms=5_000)
            if self._dead is not None:
                self._dead.close(timeout=2.0)

    def poll(self) -> None:
        """One look at Kafka, and an insert where enough has gathered."""
        wait_ms = int(1000 * self._config.linger_s / 4)
        polled = self._consumer.poll(timeout_ms=wait_ms, max_records=2_000)
        self._learn()
        for partition, messages in polled.items():
            self._gather(partition, messages)
        if self._rows and (
            self._rows >= self._config.rows
            or self._clock.monotonic_s() - self._since_s >= self._config.linger_s
        ):
            self._flush()
        while self._rows >= self._config.rows and self._flush():
            pass  # what waits is stored before more is fetched

    def _subscribe(self) -> Any:
        options: dict[str, Any] = {"group_instance_id": self._config.member} if self._config.member else {}
        consumer = KafkaConsumer(
            group_id=self._config.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=16 << 20,
            fetch_max_wait_ms=100,
            session_timeout_ms=10_000,
            max_poll_interval_ms=600_000,
            metadata_max_age_ms=5_000,
            **options,
            **client_options(self._kafka),
        )
        topics = [self._kafka.topic(record) for record in RECORDS]
        consumer.subscribe(topics=topics, listener=_Listener(self))
        return consumer

    # -- partitions come and go ---------------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are ours now; the client allows no question from inside this call."""
        self._new.update(partitions)

    def _learn(self) -> None:
        """Of new partitions: which range must be repeated, and which rows are stored."""
        if not self._new:
            return
        for partition in self._new:
            committed = self._consumer.committed(partition, metadata=True)
            lane = Lane()
            if committed is not None and str(committed.metadata).startswith(_INTENT):
                lane.until = int(committed.metadata.removeprefix(_INTENT))
            self._lanes[partition] = lane
        self._ranges.clear()
        for row in stored_ranges(self._store).to_pylist():
            self._ranges[(row["source"], row["record"])].add(row["first_row"], row["next_row"])
        log.info("partitions_assigned", partitions=len(self._new))
        self._new.clear()

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions go to another member: what is gathered of them is left for it."""
        self._new.difference_update(partitions)
        for partition in partitions:
            lane = self._lanes.pop(partition, None)
            self._rows -= sum(_rows(m) for m in lane.messages) if lane else 0

    # -- storing ------------------------------------------------------------------------------------------

    def _gather(self, partition: TopicPartition, messages: Sequence[Any]) -> None:
        if not self._rows:
            self._since_s = self._clock.monotonic_s()
        self._lanes.setdefault(partition, Lane()).messages.extend(messages)
        self._rows += sum(_rows(m) for m in messages)
        self.metrics.bytes.inc(sum(len(m.value or b"") for m in messages))

    def _flush(self) -> bool:
        """Store the next range of every partition; a store that is away is waited for. False: nothing to."""
        ranges = [
            Range(p, ready) for p, lane in self._lanes.items() if (ready := lane.ready(self._config.rows))
        ]
        if not ranges:
            return False
        self._commit({r.partition: OffsetAndMetadata(r.start, f"{_INTENT}{r.end}", -1) for r in ranges})
        saved: dict[tuple[str, str, int], int] = {}
        for each in ranges:
            self._insist(lambda each=each: saved.update(self._store_range(each)))
        self._insist(lambda: self._save(saved))
        self._commit({r.partition: OffsetAndMetadata(r.end, "", -1) for r in ranges})
        for each in ranges:
            if each.partition in self._lanes:
                self._lanes[each.partition].take(each.messages)
        self._rows = sum(_rows(m) for lane in self._lanes.values() for m in lane.messages)
        self._since_s = self._clock.monotonic_s()
        return True

    def _insist(self, act: Any) -> None:
        """Do `act` until the store takes it or we are told to stop (then the range is repeated later)."""
        while True:
            try:
                act()
            except PulsetrainError as error:
                log.warning("insert_failed", error=str(error))
                if self._stop.wait(self._config.retry_s):
                    raise
            else:
                return

    def _store_range(self, each: Range) -> dict[tuple[str, str, int], int]:
        """Insert what is new in a range; returns the row ranges to save as (source, record, first): end."""
        record = record_of(each.partition.topic, self._kafka)
        pieces: list[pa.Table] = []
        grown: dict[tuple[str, str, int], int] = {}
        fresh: defaultdict[str, Ranges] = defaultdict(Ranges)
        for message in each.messages:
            batch = self._read(record, message)
            if batch is None:
                continue
            new = self._missing(batch, fresh[batch.source])
            pieces += [batch.table.slice(low - batch.first_row, high - low) for low, high in new]
            self.metrics.repeated.labels(record).inc(batch.rows - sum(high - low for low, high in new))
            self.metrics.seen.labels(batch.source.partition("/")[0]).set(self._clock.wall_ns() / 1e9)
        if pieces:
            self._insert(record, pa.concat_tables(pieces), each.token)
        for source, ranges in fresh.items():
            for low, high in ranges:
                first, end = self._ranges[(source, record)].add(low, high)
                grown[(source, record, first)] = end
        return grown

    def _missing(self, batch: Batch, fresh: Ranges) -> list[tuple[int, int]]:
        """The parts of a batch that are neither stored nor earlier in this insert."""
        known = self._ranges[(batch.source, batch.record)]
        gaps = known.missing(batch.first_row, batch.first_row + batch.rows)
        new = [gap for low, high in gaps for gap in fresh.missing(low, high)]
        for low, high in new:
            fresh.add(low, high)
        return new

    def _insert(self, record: str, table: pa.Table, token: str) -> None:
        kept, odd = quarantine.split(record, table, self._clock.wall_ns())
        if odd.num_rows:
            aside = quarantine.Aside(record=record, source=token, first_row=0, rows=odd)
            rows = quarantine.table([aside])
            self._store.insert_raw(ddl.QUARANTINE, rows.column_names, ipc(rows), token=f"{token}:quarantine")
            self.metrics.quarantined.labels(record).inc(odd.num_rows)
        if kept.num_rows:
            with self.metrics.insert(record):
                self._store.insert_raw(record, kept.column_names, ipc(kept), token=token)
        self.metrics.rows.labels(record).inc(kept.num_rows)

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

    def _bury(self, message: Any, reason: str) -> None:
        self.metrics.refused.inc()
        where = f"{message.topic}:{message.partition}:{message.offset}"
        log.warning("dead_letter", message=where, reason=reason)
        if self._dead is None:
            self._dead = KafkaProducer(acks="all", max_request_size=16 << 20, **client_options(self._kafka))
        headers = [*(message.headers or []), ("reason", reason.encode()), ("origin", where.encode())]
        self._dead.send(self._kafka.dead_letters, key=message.key, value=message.value, headers=headers).get(
            timeout=self._kafka.timeout_s
        )

    def _save(self, grown: Mapping[tuple[str, str, int], int]) -> None:
        if not grown:
            return
        columns = [*zip(*grown, strict=True), tuple(grown.values())]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _RANGES, strict=True)], schema=_RANGES)
        self._store.insert_raw(ddl.OFFSETS, _RANGES.names, ipc(table), token=None)

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit; a broker that is away is waited for."""
        while True:
            try:
                self._consumer.commit(dict(offsets), timeout_ms=30_000)
            except errors.RetriableError as error:
                log.warning("commit_failed", error=str(error))
                time.sleep(self._config.retry_s)
            else:
                return


class Member:
    """An `Ingest` on a thread of its own, made anew whenever Kafka or the store fails it."""

    def __init__(
        self, kafka: KafkaConfig, store: Store, clock: Clock, config: IngestConfig | None = None
    ) -> None:
        self.metrics = IntakeMetrics()
        self._make = partial(Ingest, kafka, store, clock, config, self.metrics)
        self._ended = threading.Event()
        self._ingest = self._make()  # the first one here, so that a wrong address is the caller's error
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    def start(self) -> None:
        """Begin to take messages."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is gathered and end."""
        self._ended.set()
        self._ingest.stop()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._ingest.run()
            except PulsetrainError as error:
                log.warning("ingest_failed", error=str(error))
                self._again()

    def _again(self) -> None:
        while not self._ended.wait(1.0):
            try:
                self._ingest = self._make()
            except PulsetrainError as error:
                log.warning("ingest_failed", error=str(error))
            else:
                return


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the client has no types
    """Passes assignments on."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self._ingest.assigned(assigned)

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self._ingest.revoked(revoked)


def _rows(message: Any) -> int:
    """How many rows a message says it holds; 1 for one that does not say."""
    said = dict(message.headers or []).get("rows", b"")
    return int(said) if said.isdigit() else 1
