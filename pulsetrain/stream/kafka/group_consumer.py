"""The consumer of a group: messages, the partitions that come and go, and what is committed of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka.client import KafkaConfig, client_options
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.kafka.partition_buffer import Message, OffsetRange, announced_end

log = structlog.get_logger()

_FETCH_BYTES = 8 << 20
"""What one response of a broker holds, about a million span rows. A larger message comes alone."""
_COMMIT_MS = 10_000
"""One try. Kubernetes kills what has not ended 30 s after SIGTERM."""
_OUT_OF_THE_GROUP = (errors.CommitFailedError, errors.RebalanceInProgressError)


@dataclass(frozen=True)
class Rebalance:
    """How the partitions of this member changed. A partition that went and came back is in both sets."""

    revoked: frozenset[TopicPartition]
    assigned: frozenset[TopicPartition]


class GroupConsumer:
    """One member of a consumer group over the topics of all records. Nothing is committed by itself.

    Once `stop` is set, brokers that are away are no longer waited for.
    """

    def __init__(self, kafka: KafkaConfig, config: IngestConfig, stop: threading.Event) -> None:
        self._retry_s, self._stop = config.retry_s, stop
        self._revoked: set[TopicPartition] = set()
        self._assigned: set[TopicPartition] = set()
        self._changed = False
        self._next: dict[TopicPartition, int] = {}
        self._consumer = KafkaConsumer(
            group_id=config.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=100,
            session_timeout_ms=10_000,
            max_poll_interval_ms=600_000,
            metadata_max_age_ms=5_000,
            **({"group_instance_id": config.member} if config.member else {}),
            **client_options(kafka),
        )
        topics = [kafka.topic(record) for record in RECORDS]
        self._consumer.subscribe(topics=topics, listener=_Listener(self))

    def poll(self, wait_s: float) -> Mapping[TopicPartition, Sequence[Message]]:
        """What has come of each partition."""
        self._finish_rejoin()
        polled: Mapping[TopicPartition, Sequence[Message]] = self._consumer.poll(
            timeout_ms=int(1000 * wait_s), max_records=2_000
        )
        self._next.update((partition, new[-1].offset + 1) for partition, new in polled.items() if new)
        return polled

    def behind(self) -> int:
        """Messages of this member's partitions that it has not fetched, as of the brokers' last answers.

        A partition of which nothing was ever fetched does not count. No request is made.
        """
        ends = {p: self._consumer.highwater(p) for p in self._consumer.assignment() if p in self._next}
        return sum(max(0, end - self._next[p]) for p, end in ends.items() if end is not None)

    def take_rebalance(self) -> Rebalance | None:
        """How the partitions changed since the last call. None: not at all."""
        if not self._changed:
            return None
        change = Rebalance(revoked=frozenset(self._revoked), assigned=frozenset(self._assigned))
        self._revoked.clear()
        self._assigned.clear()
        self._changed = False
        return change

    def announced(self, partition: TopicPartition) -> tuple[int, int]:
        """Where the range begins and ends whose insert was announced and not yet committed as done. An end of
        -1: none was."""
        committed = self._consumer.committed(partition, metadata=True)
        return (int(committed.offset), announced_end(committed.metadata)) if committed else (-1, -1)

    def commit(self, done: Mapping[TopicPartition, int], announced: Sequence[OffsetRange]) -> bool:
        """Commit up to where partitions are done, and which ranges are inserted next.

        Waits for a broker that is away, but raises its error once it is to stop. False where the group has
        given this member up: then nothing that it fetched may be stored, and it begins again from what is
        committed.
        """
        offsets = {p: OffsetAndMetadata(end, "", -1) for p, end in done.items()}
        offsets |= {r.partition: OffsetAndMetadata(r.start, r.announcement, -1) for r in announced}
        while offsets:
            try:
                self._consumer.commit(offsets, timeout_ms=_COMMIT_MS)
            except _OUT_OF_THE_GROUP as error:
                log.warning("out_of_the_group", error=str(error))
                self._rewind()
                return False
            except errors.RetriableError as error:
                log.warning("commit_failed", error=str(error))
                if self._stop.wait(self._retry_s):
                    raise
            else:
                break
        return True

    def close(self) -> None:
        """Leave the group. Nothing is committed."""
        self._consumer.close(autocommit=False, timeout_ms=5_000)

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called by the client, which allows no request from inside this call."""
        self._assigned.update(partitions)
        self._changed |= bool(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called by the client."""
        self._revoked.update(partitions)
        self._assigned.difference_update(partitions)
        for partition in partitions:
            self._next.pop(partition, None)
        self._changed = True

    def _finish_rejoin(self) -> None:
        """Take up a rejoin that outlasted the poll that began it.

        When new topics or partitions are why the group is joined again, kafka-python (3.0.12) no longer
        holds a join to be needed once its own assignment has gone out, so the next poll never takes the
        response: no partition is assigned, no heartbeat is sent, and nothing is consumed until the process
        ends.
        """
        coordinator = self._consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()

    def _rewind(self) -> None:
        """Begin again from what is committed, as if all partitions had just been assigned."""
        partitions = self._consumer.assignment()
        for partition in partitions:
            offset = self._consumer.committed(partition)
            if offset is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, offset)
        self.on_revoked(partitions)
        self.on_assigned(partitions)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the client has no types
    """Passes assignments on."""

    def __init__(self, consumer: GroupConsumer) -> None:
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self._consumer.on_assigned(assigned)

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self._consumer.on_revoked(revoked)
