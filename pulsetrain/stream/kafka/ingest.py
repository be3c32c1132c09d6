"""Kafka to the store, each row once: a consumer group whose repeated inserts are the same.

What one insert holds is decided before it happens, and Kafka itself keeps it: the commit of the offsets
carries the end of the range in its metadata. So whoever takes over after a crash repeats the same range
under the same deduplication token (topic, partition, offsets, a digest of the messages), and the store drops
it where it was stored already:

    1. commit (start, "to end")      2. insert [start, end)      3. save row ranges      4. commit (end, "")

While one batch of this is on its way to the store, the next is fetched and decoded. Its step 1 takes the
place of step 4 where both are of one partition.

A message that was produced twice has other offsets and the same rows. `ExactlyOnceWriter` leaves them out by
the row ranges of their source. The messages of a source share a key, so one partition, so one consumer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

import structlog
from kafka import TopicPartition

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.client import KafkaConfig, create_topics, one_line_errors, refuse_credentials
from pulsetrain.stream.kafka.dead_letters import DeadLetters
from pulsetrain.stream.kafka.group_consumer import GroupConsumer, Rebalance
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.kafka.insert_batch import BatchBuilder, InsertBatch
from pulsetrain.stream.kafka.partition_buffer import Message, OffsetRange, PartitionBuffer, due, oldest_age_s
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter
from pulsetrain.stream.store.row_store import RowStore

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """Messages that this member has stored since its start, and those that wait, in Kafka or here.

    `age_s` is how long ago the oldest message that was fetched and is not stored was sent. 0: there is none.
    """

    stored: int
    waiting: int
    age_s: float


@dataclass(frozen=True)
class _InFlight:
    """A batch that another thread stores."""

    batch: InsertBatch
    stored: Future[Sequence[OffsetRange]]
    """Ranges whose rows the store refuses."""


class Ingest:
    """One member of the consumer group. `run` until `stop` is called from another thread or a signal."""

    def __init__(
        self,
        kafka: KafkaConfig,
        store: RowStore,
        clock: Clock,
        config: IngestConfig | None = None,
        metrics: IngestMetrics | None = None,
    ) -> None:
        self.metrics = metrics or IngestMetrics()
        self._kafka, self._clock = kafka, clock
        self._config = config or IngestConfig()
        self._stop = threading.Event()
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._dead_letters = DeadLetters(kafka, self.metrics)
        self._writer = ExactlyOnceWriter(store, clock, self.metrics)
        self._builder = BatchBuilder(self._writer, kafka.record_of, self._dead_letters.send)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._prepared: InsertBatch | None = None
        self._in_flight: _InFlight | None = None
        self._done: dict[TopicPartition, int] = {}
        self._stored = 0
        refuse_credentials(kafka)
        create_topics(kafka)
        with one_line_errors(kafka):
            self._consumer = GroupConsumer(kafka, self._config, self._stop)

    def stop(self) -> None:
        """Store what is gathered and end."""
        self._stop.set()

    def run(self, polled: Callable[[], None] = lambda: None) -> None:
        """Take messages until stopped; call `polled` after each look. Raises `Unavailable`, `AuthError` or
        `UsageError` of Kafka."""
        try:
            with one_line_errors(self._kafka):
                while not self._stop.is_set():
                    self.poll()
                    polled()
                self._finish()
        finally:
            self._stop.set()  # an insert that is tried again and again ends too
            self._executor.shutdown()
            self._consumer.close()
            self._dead_letters.close()

    def poll(self) -> None:
        """Look once at Kafka and at what is on its way to the store."""
        wait_s = self._config.linger_s / 4
        if self._in_flight is None or self._waiting_rows() < 4 * self._config.rows:
            self._gather(wait_s)
        else:
            wait_for([self._in_flight.stored], timeout=wait_s)
        self._advance(self._config.linger_s)

    def backlog(self) -> Backlog:
        """How far behind this member is."""
        batches = [self._prepared, self._in_flight.batch if self._in_flight else None]
        waiting: list[Sequence[Message]] = [buffer.messages for buffer in self._buffers.values()]
        waiting += [each.messages for batch in batches if batch is not None for each in batch.ranges]
        return Backlog(
            stored=self._stored,
            waiting=self._consumer.behind() + sum(map(len, waiting)),
            age_s=oldest_age_s(waiting, self._clock.wall_ns()),
        )

    def _gather(self, wait_s: float) -> None:
        """Fetch what has come."""
        polled = self._consumer.poll(wait_s)
        change = self._consumer.take_rebalance()
        if change is not None:
            self._apply(change)
        now_s = self._clock.monotonic_s()
        for partition, messages in polled.items():
            self._buffers.setdefault(partition, PartitionBuffer()).add(messages, now_s)
            self.metrics.bytes.inc(sum(len(m.value or b"") for m in messages))
        self.metrics.waiting.set(self._waiting_rows())
        backlog = self.backlog()
        self.metrics.behind.set(backlog.waiting)
        self.metrics.lag_seconds.set(backlog.age_s)

    def _waiting_rows(self) -> int:
        return sum(buffer.rows for buffer in self._buffers.values())

    def _apply(self, change: Rebalance) -> None:
        """What waits of revoked partitions is left for their new owner. Of new ones learn which range must be
        repeated, and which rows are stored."""
        for partition in change.revoked:
            self._buffers.pop(partition, None)
            self._done.pop(partition, None)
        self._settle()
        self._put_back()
        for partition in change.assigned:
            start, end = self._consumer.announced(partition)
            self._buffers[partition] = PartitionBuffer(repeat_from=start, repeat_until=end)
        self._retry(self._writer.load)
        log.info("partitions_assigned", partitions=len(change.assigned))

    def _put_back(self) -> None:
        """The prepared batch goes back to the buffers that stay, and is prepared again."""
        prepared, self._prepared = self._prepared, None
        for each in prepared.ranges if prepared else ():
            if each.partition in self._buffers:
                self._buffers[each.partition].put_back(each.messages)

    def _advance(self, linger_s: float) -> None:
        """Send the next batch to the store when the one before is stored. Where much waits, it is prepared
        meanwhile. Else it is prepared only then, so that it holds what has come until then."""
        if self._in_flight is not None and not self._in_flight.stored.done():
            if self._waiting_rows() >= self._config.rows:
                self._prepare(linger_s)
            return
        self._settle()
        batch = self._prepare(linger_s)
        if not self._consumer.commit(self._done, batch.ranges if batch else ()):
            self._prepared = None
            self._buffers.clear()
        elif batch is not None:
            self._prepared = None
            stored = self._executor.submit(batch.write, self._writer, self._retry)
            self._in_flight = _InFlight(batch, stored)
        self._done = {}

    def _prepare(self, linger_s: float) -> InsertBatch | None:
        """The next batch, built of what is due. None: nothing is."""
        if self._prepared is None:
            now_s = self._clock.monotonic_s()
            ranges = due(self._buffers, now_s, rows=self._config.rows, linger_s=linger_s)
            for each in ranges:
                self._buffers[each.partition].take(each.messages, now_s)
            self._prepared = self._builder.build(ranges) if ranges else None
        return self._prepared

    def _settle(self) -> None:
        """Wait for the batch in flight. Its offsets are committed next."""
        if self._in_flight is not None:
            refused = self._in_flight.stored.result()
            if refused:
                self._store_parts(refused)
            for each in self._in_flight.batch.ranges:
                self._stored += len(each.messages)
                if each.partition in self._buffers:
                    self._done[each.partition] = each.end
            self._in_flight = None

    def _store_parts(self, refused: Sequence[OffsetRange]) -> None:
        """The store refuses rows for good. Set their messages aside, or the partition would never go on.

        The prepared batch counts as stored what was refused here, so it is prepared again.
        """
        self._put_back()
        self._retry(self._writer.load)
        for each in refused:
            log.warning("rows_refused", range=each.token, messages=len(each.messages))
            self._builder.store_parts(each, self._retry)

    def _finish(self) -> None:
        """Store what is gathered. A range that is not whole is left to who comes next."""
        self._settle()
        while self._prepare(linger_s=0.0) is not None:
            self._advance(linger_s=0.0)
            self._settle()
        self._consumer.commit(self._done, ())
        self._done = {}

    def _retry(self, act: Callable[[], None]) -> None:
        """Do `act` until the store takes it. When stopped, raise: the next owner repeats the range."""
        while True:
            try:
                act()
            except PulsetrainError as error:
                log.warning("store_failed", error=str(error))
                if self._stop.wait(self._config.retry_s):
                    raise
            else:
                return
