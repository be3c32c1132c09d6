"""A consumer group without brokers: one topic of `steps` in memory, and what is committed of it."""

from __future__ import annotations

from types import SimpleNamespace

from kafka import TopicPartition

from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.group_consumer import Rebalance
from pulsetrain.stream.kafka.ingest import Ingest
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.kafka.partition_buffer import announced_end
from tests.stream.fakes import StillClock

KAFKA = KafkaConfig(prefix="")


def message(offset, data, *, partition=0, rows=None, topic="steps", timestamp=-1):
    headers = [] if rows is None else [("rows", str(rows).encode())]
    return SimpleNamespace(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        key=None,
        value=data,
        headers=headers,
    )


class Topic:
    """Messages by partition, and (offset, metadata) that the group committed of each."""

    def __init__(self, partitions=1):
        self.messages = {TopicPartition("steps", p): [] for p in range(partitions)}
        self.committed = {p: (0, "") for p in self.messages}
        self.rows = 0

    def send(self, data, partition=0, rows=None, timestamp=-1):
        log = self.messages[TopicPartition("steps", partition)]
        log.append(message(len(log), data, partition=partition, rows=rows, timestamp=timestamp))


class FakeConsumer:
    """Takes the place of `GroupConsumer`; the test says what the group does to it."""

    def __init__(self, topic):
        self.topic = topic
        self.positions = {}
        self.fetch = 100
        self.given_up = False
        self._change = None
        self.rebalance(topic.messages)

    def rebalance(self, partitions):
        """The group gives this member `partitions` and takes all others from it."""
        revoked, self.positions = frozenset(self.positions), {}
        for partition in partitions:
            self.positions[partition] = self.topic.committed[partition][0]
        self._change = Rebalance(revoked=revoked, assigned=frozenset(partitions))

    def poll(self, wait_s):
        polled = {}
        for partition, position in self.positions.items():
            new = self.topic.messages[partition][position : position + self.fetch]
            if new:
                polled[partition] = new
                self.positions[partition] += len(new)
        return polled

    def behind(self):
        return sum(len(self.topic.messages[p]) - at for p, at in self.positions.items())

    def take_rebalance(self):
        change, self._change = self._change, None
        return change

    def announced(self, partition):
        start, metadata = self.topic.committed[partition]
        return start, announced_end(metadata)

    def commit(self, done, announced):
        if self.given_up:
            self.given_up = False
            self.rebalance(list(self.positions))
            return False
        for partition, end in done.items():
            self.topic.committed[partition] = (end, "")
        for each in announced:
            self.topic.committed[each.partition] = (each.start, each.announcement)
        return True

    def close(self):
        self.closed = True


class DeadLetterBox:
    """Takes the place of `DeadLetters`."""

    def __init__(self):
        self.letters = []

    def send(self, message, reason):
        self.letters.append((message.offset, reason))

    def close(self):
        self.closed = True


def make_ingest(monkeypatch, topic, store, *, config=None):
    """An `Ingest` over `topic`, its consumer and its dead letters."""
    consumer, box, clock = FakeConsumer(topic), DeadLetterBox(), StillClock()
    with monkeypatch.context() as patch:
        module = "pulsetrain.stream.kafka.ingest"
        patch.setattr(f"{module}.refuse_credentials", lambda kafka: None)
        patch.setattr(f"{module}.create_topics", lambda kafka: None)
        patch.setattr(f"{module}.GroupConsumer", lambda kafka, config, stop: consumer)
        patch.setattr(f"{module}.DeadLetters", lambda kafka, metrics: box)
        ingest = Ingest(KAFKA, store, clock, config or IngestConfig(linger_s=0.001, retry_s=0.001))
    return SimpleNamespace(ingest=ingest, consumer=consumer, dead_letters=box, clock=clock)
