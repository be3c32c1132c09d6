"""What is sent to Kafka, and what no broker will ever take. With a broker: `test_transport_broker.py`."""

from __future__ import annotations

import os
import re

import pyarrow as pa
import pytest
from kafka import errors

from pulsetrain.core.errors import Unavailable
from pulsetrain.records.batch import decode, encode
from pulsetrain.records.encoding import encode as encode_columns
from pulsetrain.records.schema import SCHEMA_VERSION
from pulsetrain.stream.kafka import transport
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.transport import KafkaTransport
from pulsetrain.stream.spool.queue import Entry
from tests.stream.rows import columns, table


class Producer:
    """Stands in for the client's producer. `too_large` are sizes that it or its broker refuses."""

    def __init__(self, **options):
        self.options = options
        self.sent = []
        self.refused = set()
        self.failure = None
        self.closed = False

    def send(self, topic, **message):
        if len(message["value"]) > 1 << 20:
            raise errors.MessageSizeTooLargeError("larger than max_request_size")
        self.sent.append((topic, message))
        return Delivery(self.failure)

    def flush(self, timeout):
        pass

    def close(self, timeout):
        self.closed = True


class Delivery:
    def __init__(self, failure):
        self.failure = failure

    def get(self, timeout):
        if self.failure:
            raise self.failure


@pytest.fixture
def made(monkeypatch):
    """A transport, and all producers that it made."""
    producers = []
    monkeypatch.setattr(
        transport, "KafkaProducer", lambda **options: producers.append(Producer(**options)) or producers[-1]
    )
    return KafkaTransport(KafkaConfig(prefix="p.")), producers


def entry(data, rows=1):
    return Entry(segment=0, end=0, rows=rows, data=data)


def steps(rows=2, **more):
    return encode("steps", table("steps", rows, **more), source="node-a/1", first_row=7)


def test_a_batch_goes_to_its_topic_keyed_by_node_with_its_identity_in_the_headers(made):
    sender, producers = made
    assert sender.send([entry(steps())]) == []
    ((topic, message),) = producers[0].sent
    assert (topic, message["key"], message["value"]) == ("p.steps", b"node-a", steps())
    assert dict(message["headers"]) == {
        "schema": b"%d" % SCHEMA_VERSION, "source": b"node-a/1", "first_row": b"7", "rows": b"2",
    }  # fmt: skip


def test_a_batch_as_agents_build_it_becomes_arrow(made):
    sender, producers = made
    sender.send([entry(encode_columns(columns("steps", 3), source="node-a/1", first_row=0))])
    ((_, message),) = producers[0].sent
    assert decode(message["value"]).table.equals(table("steps", 3))


def test_what_a_newer_version_left_in_the_spool_is_sent_as_it_is(made):
    sender, producers = made
    rows = table("steps", 2)
    identity = pa.ipc.open_stream(steps()).schema.metadata
    newer = rows.append_column("of_the_future", pa.array([1, 2])).replace_schema_metadata(
        {**identity, b"pulsetrain.version": b"%d" % (SCHEMA_VERSION + 1)}
    )
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, newer.schema) as writer:
        writer.write_table(newer)
    data = stream.getvalue().to_pybytes()
    assert sender.send([entry(data)]) == []
    ((_, message),) = producers[0].sent
    assert message["value"] == data
    assert dict(message["headers"])["schema"] == b"%d" % (SCHEMA_VERSION + 1)
    assert decode(message["value"]).table.equals(rows)


def test_messages_are_acknowledged_by_all_replicas_and_never_doubled_by_the_client(made):
    sender, producers = made
    sender.send([entry(steps())])
    assert (producers[0].options["acks"], producers[0].options["enable_idempotence"]) == ("all", True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"garbage", "not an Arrow IPC stream"),
        (steps().replace(b"steps", b"stxps"), f"unknown record 'stxps' of schema version {SCHEMA_VERSION}"),
        (steps(rows=1) + bytes(1 << 21), "message of 2.* bytes"),
    ],
    ids=["garbage", "unknown-record", "too-large"],
)
def test_what_no_broker_will_take_is_refused_and_the_rest_is_sent(made, data, words):
    sender, producers = made
    bad, good = entry(data), entry(steps())
    (rejection,) = sender.send([bad, good])
    assert rejection.entry is bad
    assert re.search(words, rejection.why)
    assert len(producers[0].sent) == 1


@pytest.fixture
def refusing(monkeypatch):
    """A transport whose brokers take 1 MiB a message, and the messages that they took.

    As with kafka-python a message that is refused ends its producer, and what is sent with it later fails.
    """
    taken, tried = [], []

    class Ended(Producer):
        def send(self, topic, **message):
            tried.append(len(message["value"]))
            if len(message["value"]) > 1 << 20:
                self.failure = self.failure or errors.RecordListTooLargeError("batch")
            elif not self.failure:
                taken.append(message)
                return Delivery(None)
            failure, self.failure = self.failure, errors.KafkaError("the producer has failed")
            return Delivery(failure)

    monkeypatch.setattr(transport, "KafkaProducer", Ended)
    return KafkaTransport(KafkaConfig(prefix="p.")), taken, tried


def noise(rows, size_bytes, first_row=0):
    """Rows of `logs` of about so many bytes. Hexadecimal digits compress to half their length."""
    texts = [os.urandom(size_bytes // rows).hex() for _ in range(rows)]
    return encode("logs", table("logs", rows, message=texts), source="n/1", first_row=first_row)


def values(taken):
    return [each["value"] for each in taken]


def test_a_batch_that_the_brokers_find_too_large_arrives_in_parts_with_what_was_sent_beside_it(refusing):
    sender, taken, _ = refusing
    big = noise(64, 3 << 20, first_row=100)
    assert len(big) > 2 << 20
    assert sender.send([entry(big, 64), entry(steps())]) == []
    parts = [batch for batch in map(decode, values(taken)) if batch.record == "logs"]
    parts.sort(key=lambda batch: batch.first_row)
    assert pa.concat_tables(part.table for part in parts).equals(decode(big).table)
    assert [part.first_row for part in parts] == [
        100 + sum(p.rows for p in parts[:i]) for i in range(len(parts))
    ]
    assert [decode(each).record for each in values(taken)].count("steps") == 1


def test_the_size_that_brokers_refuse_is_remembered(refusing):
    sender, _, tried = refusing
    big = entry(noise(64, 3 << 20), 64)
    sender.send([big])
    tried.clear()
    assert sender.send([big]) == []
    assert max(tried) <= 1 << 20


def test_one_row_that_is_too_large_is_refused_with_its_size_and_what_the_brokers_say(refusing):
    sender, taken, _ = refusing
    bad, good = entry(noise(1, 2 << 20)), entry(steps())
    (rejection,) = sender.send([bad, good])
    assert rejection.entry is bad
    assert re.search("message of [0-9]+ bytes: .*RecordListTooLarge", rejection.why)
    assert values(taken) == [good.data]


def test_after_a_failure_the_next_send_begins_with_a_new_producer(made):
    sender, producers = made
    sender._open().failure = errors.KafkaConnectionError("gone")
    with pytest.raises(Unavailable, match="does not answer"):
        sender.send([entry(steps())])
    assert producers[0].closed
    assert sender.send([entry(steps())]) == []
    assert len(producers) == 2
    sender.close()
    sender.close()
