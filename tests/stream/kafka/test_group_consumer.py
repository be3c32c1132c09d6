"""What a member of the group commits, and how it begins again when the group gave it up."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from kafka import TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka import group_consumer
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.group_consumer import GroupConsumer, Rebalance
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.kafka.partition_buffer import OffsetRange
from tests.stream.kafka.fakes import message

ONE, TWO = TopicPartition("steps", 1), TopicPartition("steps", 2)


class Client:
    """Stands in for the client of kafka-python: what it was told, and what it answers."""

    def __init__(self, **options):
        self.options = options
        self.commits = []
        self.failures = []
        self.kept = {}
        self.ends = {}
        self.positions = {}
        self.rejoins = 0
        self._coordinator = SimpleNamespace(
            rejoining=False, need_rejoin=lambda: False, request_rejoin=self._rejoin
        )

    def subscribe(self, topics, listener):
        self.topics, self.listener = topics, listener

    def poll(self, timeout_ms, max_records):
        return {ONE: [message(3, b"x")]}

    def commit(self, offsets, timeout_ms):
        if self.failures:
            raise self.failures.pop(0)
        self.commits.append(dict(offsets))

    def committed(self, partition, metadata=False):
        kept = self.kept.get(partition)
        return kept if metadata or kept is None else kept.offset

    def assignment(self):
        return {ONE, TWO}

    def highwater(self, partition):
        return self.ends.get(partition)

    def seek(self, partition, offset):
        self.positions[partition] = offset

    def seek_to_beginning(self, partition):
        self.positions[partition] = 0

    def _rejoin(self):
        self.rejoins += 1


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(group_consumer, "KafkaConsumer", Client)
    config = IngestConfig(group="g", member="m", retry_s=0.0)
    consumer = GroupConsumer(KafkaConfig(prefix="p."), config, threading.Event())
    return consumer, consumer._consumer


def test_it_reads_the_topics_of_all_records_and_never_commits_by_itself(made):
    _, client = made
    assert client.topics == [f"p.{record}" for record in RECORDS]
    assert client.options["enable_auto_commit"] is False
    assert (client.options["group_id"], client.options["group_instance_id"]) == ("g", "m")


def test_a_member_without_a_name_is_a_new_one_at_each_start(monkeypatch):
    monkeypatch.setattr(group_consumer, "KafkaConsumer", Client)
    consumer = GroupConsumer(KafkaConfig(), IngestConfig(), threading.Event())
    assert "group_instance_id" not in consumer._consumer.options


def test_a_rebalance_is_told_once(made):
    consumer, client = made
    assert consumer.take_rebalance() is None
    client.listener.on_partitions_revoked([])
    client.listener.on_partitions_assigned([ONE, TWO])
    assert consumer.take_rebalance() == Rebalance(frozenset(), frozenset({ONE, TWO}))
    assert consumer.take_rebalance() is None


def test_a_partition_that_came_and_went_is_revoked_and_one_that_went_and_came_is_both(made):
    consumer, client = made
    client.listener.on_partitions_assigned([ONE])
    client.listener.on_partitions_revoked([ONE, TWO])
    client.listener.on_partitions_assigned([TWO])
    assert consumer.take_rebalance() == Rebalance(frozenset({ONE, TWO}), frozenset({TWO}))


def test_the_next_range_takes_the_place_of_what_is_done_of_its_partition(made):
    consumer, client = made
    announced = OffsetRange(ONE, [message(5, b""), message(6, b"")])
    assert consumer.commit({ONE: 5, TWO: 9}, [announced])
    (offsets,) = client.commits
    assert offsets == {ONE: OffsetAndMetadata(5, "to 7", -1), TWO: OffsetAndMetadata(9, "", -1)}


def test_nothing_to_commit_asks_no_broker(made):
    consumer, client = made
    assert consumer.commit({}, [])
    assert client.commits == []


def test_a_broker_that_is_away_is_waited_for(made):
    consumer, client = made
    client.failures = [errors.KafkaTimeoutError(), errors.KafkaConnectionError()]
    assert consumer.commit({ONE: 5}, [])
    assert len(client.commits) == 1


def test_a_member_that_is_to_stop_waits_for_no_broker(monkeypatch):
    monkeypatch.setattr(group_consumer, "KafkaConsumer", Client)
    stop = threading.Event()
    consumer = GroupConsumer(KafkaConfig(), IngestConfig(retry_s=60.0), stop)
    consumer._consumer.failures = [errors.KafkaTimeoutError()] * 3
    threading.Timer(0.01, stop.set).start()
    with pytest.raises(errors.KafkaTimeoutError):
        consumer.commit({ONE: 5}, [])


@pytest.mark.parametrize("error", [errors.CommitFailedError(), errors.RebalanceInProgressError()])
def test_a_member_that_was_given_up_begins_again_where_the_group_stands(made, error):
    consumer, client = made
    client.failures = [error]
    client.kept = {ONE: OffsetAndMetadata(7, "to 9", -1)}
    assert not consumer.commit({ONE: 11}, [])
    assert client.positions == {ONE: 7, TWO: 0}
    assert consumer.take_rebalance() == Rebalance(frozenset({ONE, TWO}), frozenset({ONE, TWO}))


def test_an_announced_range_is_read_from_the_commit(made):
    consumer, client = made
    client.kept = {ONE: OffsetAndMetadata(7, "to 9", -1)}
    assert (consumer.announced(ONE), consumer.announced(TWO)) == ((7, 9), (-1, -1))


@pytest.mark.parametrize(
    ("rejoining", "needed", "rejoins"), [(True, False, 1), (True, True, 0), (False, False, 0)]
)
def test_a_rejoin_that_the_client_forgot_is_asked_for_again(made, rejoining, needed, rejoins):
    consumer, client = made
    client._coordinator.rejoining = rejoining
    client._coordinator.need_rejoin = lambda: needed
    assert [m.offset for m in consumer.poll(0.1)[ONE]] == [3]
    assert client.rejoins == rejoins


def test_what_was_not_fetched_yet_is_counted_without_a_question(made):
    consumer, client = made
    assert consumer.behind() == 0
    client.ends = {ONE: 14, TWO: 99}
    consumer.poll(0.0)
    assert consumer.behind() == 10  # message 3 of partition 1 was fetched, of partition 2 nothing was
    client.ends = {}
    assert consumer.behind() == 0
    client.ends = {ONE: 14}
    client.listener.on_partitions_revoked([ONE])
    assert consumer.behind() == 0
