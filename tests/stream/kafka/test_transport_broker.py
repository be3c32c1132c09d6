"""Batches through a real broker: what is sent arrives once, and what cannot be sent says why."""

import contextlib
import os
import uuid

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import NewTopic

from pulsetrain.core.errors import Unavailable
from pulsetrain.records.batch import decode, encode
from pulsetrain.records.schema import SCHEMA_VERSION
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.transport import KafkaTransport
from pulsetrain.stream.spool.queue import Entry
from tests.stream.rows import table

pytestmark = [pytest.mark.kafka, pytest.mark.integration]


def entry(data, rows=1):
    return Entry(segment=0, end=0, rows=rows, data=data)


def config(broker, **changes):
    return KafkaConfig(servers=broker.servers, prefix=f"t{uuid.uuid4().hex[:8]}.", timeout_s=60, **changes)


def read(config, record, count):
    consumer = KafkaConsumer(
        config.topic(record),
        bootstrap_servers=config.servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    try:
        return [message for _, message in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


def test_a_batch_arrives_whole_with_its_identity_in_the_headers(broker):
    mine = config(broker)
    transport = KafkaTransport(mine)
    rows = table("spans", 100)
    assert transport.send([entry(encode("spans", rows, source="node-a/1", first_row=7), 100)]) == []
    transport.close()
    (message,) = read(mine, "spans", 1)
    schema = b"%d" % SCHEMA_VERSION
    assert dict(message.headers) == {
        "schema": schema,
        "source": b"node-a/1",
        "first_row": b"7",
        "rows": b"100",
    }
    assert message.key == b"node-a"
    assert decode(message.value).table.equals(rows)


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
def test_the_brokers_own_compression_is_passed_through(broker, compression):
    mine = config(broker, compression=compression)
    transport = KafkaTransport(mine)
    transport.send([entry(encode("steps", table("steps", 5), source="a/1", first_row=0), 5)])
    transport.close()
    (message,) = read(mine, "steps", 1)
    assert decode(message.value).rows == 5


def test_garbage_is_refused_and_the_rest_is_sent(broker):
    mine = config(broker)
    transport = KafkaTransport(mine)
    good = entry(encode("steps", table("steps", 5), source="a/1", first_row=0), 5)
    rejected = transport.send([entry(b"garbage"), good])
    transport.close()
    assert [r.entry.data for r in rejected] == [b"garbage"]
    assert len(read(mine, "steps", 1)) == 1


def test_a_message_that_no_broker_takes_is_refused_with_its_size(broker):
    mine = config(broker)
    transport = KafkaTransport(mine)
    huge = encode("logs", table("logs", 1, message="x" * 10), source="a/1", first_row=0)
    padded = entry(huge + b"\0" * (9 << 20), 1)
    (rejection,) = transport.send([padded])
    transport.close()
    assert str(len(padded.data)) in rejection.why


def test_a_batch_beyond_the_topics_limit_arrives_in_parts_with_what_was_sent_beside_it(broker):
    mine = config(broker)
    limited = NewTopic(mine.topic("logs"), 1, 1, topic_configs={"max.message.bytes": "1048576"})
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=mine.servers)) as admin:
        admin.create_topics([limited])
    texts = [os.urandom(48 << 10).hex() for _ in range(64)]
    rows = table("logs", 64, message=texts)
    big = entry(encode("logs", rows, source="a/1", first_row=0), 64)
    small = entry(encode("logs", table("logs", 3), source="a/1", first_row=64), 3)
    transport = KafkaTransport(mine)
    assert len(big.data) > 3 << 20
    assert transport.send([big, small]) == []
    assert transport.send([small]) == []
    transport.close()
    received = [decode(message.value) for message in read(mine, "logs", 6)]
    batches = {batch.first_row: batch for batch in received}
    parts = [batches[first] for first in sorted(batches)]
    assert pa.concat_tables(part.table for part in parts).slice(0, 64).equals(rows)


def test_an_unknown_broker_is_one_line():
    transport = KafkaTransport(KafkaConfig(servers="127.0.0.1:1", timeout_s=2))
    with pytest.raises(Unavailable, match=r"Kafka 127\.0\.0\.1:1 does not answer"):
        transport.send([entry(encode("steps", table("steps", 1), source="a/1", first_row=0))])
    transport.close()
