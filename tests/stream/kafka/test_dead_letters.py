"""A dead letter is the message as it came, with the reason and its origin."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka import errors

from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka import dead_letters
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.dead_letters import DeadLetters
from tests.stream.kafka.fakes import message


class Producer:
    made = 0
    max_bytes = 1 << 30

    def __init__(self, **options):
        Producer.made += 1
        self.sent = []
        self.failure = None

    def send(self, topic, **message):
        if len(message["value"]) > self.max_bytes:
            self.failure = errors.MessageSizeTooLargeError("too large")
        else:
            self.sent.append((topic, message))
        return SimpleNamespace(get=self._get)

    def _get(self, timeout):
        if self.failure:
            raise self.failure

    def close(self, timeout):
        self.closed = True


@pytest.fixture
def letters(monkeypatch):
    monkeypatch.setattr(dead_letters, "KafkaProducer", Producer)
    monkeypatch.setattr(Producer, "made", 0)
    return DeadLetters(KafkaConfig(prefix="p."), IngestMetrics())


def test_the_message_is_unchanged_and_the_reason_and_origin_are_headers(letters):
    letters.send(message(7, b"garbage", partition=2, rows=3), "not an Arrow IPC stream")
    ((topic, sent),) = letters._producer.sent
    assert topic == "p.dead-letter"
    assert (sent["key"], sent["value"]) == (None, b"garbage")
    assert dict(sent["headers"]) == {
        "rows": b"3", "reason": b"not an Arrow IPC stream", "origin": b"steps:2:7",
    }  # fmt: skip


def test_a_header_without_a_value_is_sent_as_an_empty_one(letters):
    poisoned = message(7, b"garbage")
    poisoned.headers = [("trace", None)]
    letters.send(poisoned, "not an Arrow IPC stream")
    ((_, sent),) = letters._producer.sent
    assert sent["headers"][0] == ("trace", b"")


def test_one_connection_serves_all_and_none_is_made_before_the_first(letters):
    assert Producer.made == 0
    letters.close()
    for offset in range(3):
        letters.send(message(offset, b"x"), "why")
    assert Producer.made == 1
    letters.close()
    assert letters._producer.closed


def test_it_is_counted_and_a_broker_that_does_not_take_it_is_an_error(letters):
    letters.send(message(0, b"x"), "why")
    letters._producer.failure = TimeoutError("no answer")
    with pytest.raises(TimeoutError):
        letters.send(message(1, b"x"), "why")
    assert letters._metrics.registry.get_sample_value("pulsetrain_ingest_refused_batches_total") == 2


def test_a_message_that_is_too_large_is_cut_and_says_so(letters, monkeypatch):
    monkeypatch.setattr(Producer, "max_bytes", 1 << 20)
    letters.send(message(3, b"x" * (2 << 20)), "why")
    ((_, sent),) = letters._producer.sent
    assert sent["value"] == b"x" * (64 << 10)
    assert dict(sent["headers"]) == {
        "reason": b"why", "origin": b"steps:0:3", "cut_from_bytes": b"2097152",
    }  # fmt: skip
