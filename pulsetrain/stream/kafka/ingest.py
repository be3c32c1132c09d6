"""Kafka to the store, each row once: a consumer group whose replays repeat their inserts exactly.

What one insert holds is decided before it happens and kept by Kafka itself: the offsets' commit carries the
end of the range in its metadata. So whoever takes over after a crash repeats the very same range under the
very same deduplication token (topic, partition, offsets), and the store drops it where it was stored already:

    1. commit (start, "to end")      2. insert [start, end)      3. save row ranges      4. commit (end, "")

While one turn of this is on its way to the store, the next is fetched and decoded; its step 1 takes the place
of step 4 where both are of one partition.

A message that was produced twice is another matter: it has other offsets and the same rows. Those are found
by the row ranges of its source, which the store keeps (`ddl.OFFSETS`); a source's messages share a key, so
one partition, so one consumer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.ingest_metrics import IntakeMetrics
from pulsetrain.stream.kafka.insert_batch import BatchBuilder, InsertBatch
from pulsetrain.stream.kafka.partition_buffer import PartitionBuffer, Range, announced, due
from pulsetrain.stream.kafka.transport import (
    KafkaConfig,
    client_options,
    create_topics,
    one_line_errors,
    record_of,
    refuse_credentials,
)
from pulsetrain.stream.store.clickhouse import Store

log = structlog.get_logger()

_FETCH_BYTES = 8 << 20
"""What one answer of a broker holds, about a million span rows; a larger message comes alone."""
_OUT_OF_THE_GROUP = (errors.CommitFailedError, errors.RebalanceInProgressError)


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """Table ``[ingest]``, environment ``PULSETRAIN_INGEST_*``."""

    group: str = "pulsetrain"
    """Consumer group; processes of one group share the partitions."""
    member: str = ""
    """Name of this process in the group; with a stable name a restart gets its partitions back at once."""
    rows: int = 250_000
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
        self._lanes: dict[TopicPartition, PartitionBuffer] = {}
        self._preparer = BatchBuilder(partial(record_of, config=kafka), self._bury, clock, self.metrics)
        self._storer = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._ready: InsertBatch | None = None
        self._going: tuple[InsertBatch, Future[None]] | None = None
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._new: set[TopicPartition] = set()
        self._changed = False
        refuse_credentials(kafka)
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
                self._finish()
        finally:
            self._stop.set()  # an insert that is tried again and again ends too
            self._storer.shutdown()
            self._consumer.close(autocommit=False, timeout_ms=5_000)
            if self._dead is not None:
                self._dead.close(timeout=2.0)

    def poll(self) -> None:
        """One look at Kafka and at what is on its way to the store."""
        wait_s = self._config.linger_s / 4
        if self._going is None or self._waiting_rows() < 4 * self._config.rows:
            self._gather(wait_s)
        else:
            wait_for([self._going[1]], timeout=wait_s)
        self._advance(self._config.linger_s)

    def _subscribe(self) -> Any:
        options: dict[str, Any] = {"group_instance_id": self._config.member} if self._config.member else {}
        consumer = KafkaConsumer(
            group_id=self._config.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES,
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

    def _gather(self, wait_s: float) -> None:
        """Fetch what has come."""
        self._finish_rejoin()
        polled = self._consumer.poll(timeout_ms=int(1000 * wait_s), max_records=2_000)
        self._learn()
        now_s = self._clock.monotonic_s()
        for partition, messages in polled.items():
            self._lanes.setdefault(partition, PartitionBuffer()).add(messages, now_s)
            self.metrics.bytes.inc(sum(len(m.value or b"") for m in messages))
        self.metrics.waiting.set(self._waiting_rows())

    def _waiting_rows(self) -> int:
        return sum(lane.rows for lane in self._lanes.values())

    # -- partitions come and go ---------------------------------------------------------------------------

    def _finish_rejoin(self) -> None:
        """Take up a rejoin that outlasted the poll that began it.

        When new topics or partitions are why the group is joined again, kafka-python (3.0.12) no longer holds
        a join to be needed once its own assignment has gone out, so the poll after never takes the answer: no
        partition is assigned, no heartbeat is sent, and nothing is consumed until the process ends.
        """
        coordinator = self._consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are ours now; the client allows no question from inside this call."""
        self._new.update(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions go to another member: what is gathered of them is left for it."""
        self._changed = True
        self._new.difference_update(partitions)
        for partition in partitions:
            self._lanes.pop(partition, None)
            self._done.pop(partition, None)

    def _learn(self) -> None:
        """After a change of partitions: which range of each must be repeated, and which rows are stored."""
        if not self._changed and not self._new:
            return
        self._settle()
        self._put_back()
        for partition in self._new:
            committed = self._consumer.committed(partition, metadata=True)
            self._lanes[partition] = PartitionBuffer(until=announced(committed.metadata) if committed else -1)
        self._preparer.learn(self._store)
        log.info("partitions_assigned", partitions=len(self._new))
        self._new.clear()
        self._changed = False

    def _put_back(self) -> None:
        """What was made ready goes back to the lanes that stay, and is made anew."""
        ready, self._ready = self._ready, None
        for each in ready.ranges if ready else ():
            if each.partition in self._lanes:
                self._lanes[each.partition].put_back(each.messages)

    # -- storing ------------------------------------------------------------------------------------------

    def _advance(self, linger_s: float) -> None:
        """Let a turn go when the one before is stored. Where much waits it is made ready beside that one;
        else it is made then, so that it holds what has come meanwhile."""
        if self._going is not None and not self._going[1].done():
            if self._waiting_rows() >= self._config.rows:
                self._made_ready(linger_s)
            return
        self._settle()
        self._made_ready(linger_s)
        turn = self._ready
        intents = {
            r.partition: OffsetAndMetadata(r.start, r.intent, -1) for r in (turn.ranges if turn else ())
        }
        if self._commit(intents) and turn is not None:
            self._ready = None
            self._going = (turn, self._storer.submit(turn.store, self._store, self.metrics, self._insist))

    def _made_ready(self, linger_s: float) -> bool:
        """Whether there is a next turn, once what is due has been made into one."""
        if self._ready is None:
            now_s = self._clock.monotonic_s()
            taken = due(self._lanes, now_s, rows=self._config.rows, linger_s=linger_s)
            for partition, messages in taken:
                self._lanes[partition].take(messages, now_s)
            self._ready = self._preparer.turn([Range(p, m) for p, m in taken]) if taken else None
        return self._ready is not None

    def _settle(self) -> None:
        """Wait for the turn on its way; its offsets are committed next."""
        if self._going is not None:
            turn, future = self._going
            future.result()
            self._going = None
            for each in turn.ranges:
                if each.partition in self._lanes:
                    self._done[each.partition] = OffsetAndMetadata(each.end, "", -1)

    def _finish(self) -> None:
        """Store what is gathered; a range that is not whole is left to who comes next."""
        self._settle()
        while self._made_ready(linger_s=0.0):
            self._advance(linger_s=0.0)
            self._settle()
        self._commit({})

    def _insist(self, act: Callable[[], None]) -> None:
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

    def _commit(self, intents: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Commit what is done and what comes next; a broker that is away is waited for.

        False where the group has given us up: then nothing of it holds any more.
        """
        offsets = self._done | dict(intents)
        while offsets:
            try:
                self._consumer.commit(offsets, timeout_ms=30_000)
            except _OUT_OF_THE_GROUP as error:
                log.warning("out_of_the_group", error=str(error))
                self._start_over()
                return False
            except errors.RetriableError as error:
                log.warning("commit_failed", error=str(error))
                time.sleep(self._config.retry_s)
            else:
                break
        self._done = {}
        return True

    def _start_over(self) -> None:
        """Forget everything gathered and begin again where the group's commits say."""
        self._ready, self._done = None, {}
        self._lanes.clear()
        for partition in self._consumer.assignment():
            offset = self._consumer.committed(partition)
            if offset is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, offset)
            self._new.add(partition)


class Member:
    """An `Ingest` that is made anew whenever Kafka fails it, here or on a thread of its own."""

    def __init__(
        self,
        kafka: KafkaConfig,
        store: Store,
        clock: Clock,
        config: IngestConfig | None = None,
        metrics: IntakeMetrics | None = None,
    ) -> None:
        self.metrics = metrics or IntakeMetrics()
        self._make = partial(Ingest, kafka, store, clock, config, self.metrics)
        self._ended = threading.Event()
        self._ingest = self._make()  # the first one here, so that a wrong address is the caller's error
        self._thread = threading.Thread(target=self.run, args=[PulsetrainError], name="ingest", daemon=True)

    def run(self, forgiven: type[PulsetrainError] = Unavailable) -> None:
        """Take messages until stopped; brokers that go away are waited for. Raises what is not forgiven."""
        while not self._ended.is_set():
            try:
                self._ingest.run()
            except forgiven as error:
                log.warning("ingest_failed", error=str(error))
                self._again(forgiven)

    def start(self) -> None:
        """Begin to take messages on a thread, whatever fails."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is gathered and end. `run` returns then; a thread is waited for."""
        self._ended.set()
        self._ingest.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _again(self, forgiven: type[PulsetrainError]) -> None:
        while not self._ended.wait(1.0):
            try:
                self._ingest = self._make()
            except forgiven as error:
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
