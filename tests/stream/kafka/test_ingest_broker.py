"""What goes into Kafka is in the store once, whatever is killed on the way; proven by the rows' own ids."""

import random
import time

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from pulsetrain.records.batch import encode, identify
from pulsetrain.stream.kafka.transport import KafkaTransport, headers_of
from pulsetrain.stream.spool.queue import Entry
from tests.agent.real_processes import until
from tests.stream.rows import table

pytestmark = [pytest.mark.kafka, pytest.mark.integration]

KILLS = 100


def dead_letter(pipeline):
    """The first dead letter: its bytes and the reason."""
    consumer = KafkaConsumer(
        pipeline.config.dead_letters,
        bootstrap_servers=pipeline.config.servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    message = next(consumer)
    consumer.close()
    return message.value, dict(message.headers)["reason"]


def stream(rows):
    """`rows` as an Arrow IPC stream with the metadata that they have."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def test_messages_that_come_twice_or_in_another_order_are_stored_once(pipeline):
    messages = [pipeline.message(f"n{s}/1") for s in range(4) for _ in range(10)]
    copies = messages + random.Random(1).sample(messages, 20)
    random.Random(2).shuffle(copies)
    transport = KafkaTransport(pipeline.config)
    transport.send(copies)
    transport.close()
    pipeline.start()
    pipeline.drain()
    pipeline.assert_each_once()


def test_what_cannot_be_read_goes_to_the_dead_letters_with_the_reason(pipeline):
    good = pipeline.message("n0/1")
    producer = KafkaProducer(bootstrap_servers=pipeline.config.servers)
    producer.send(pipeline.config.topic("steps"), value=b"garbage")
    producer.send(pipeline.config.topic("steps"), value=good.data, headers=headers_of(identify(good.data)))
    producer.close()
    pipeline.start()
    pipeline.drain()
    pipeline.assert_each_once()
    value, reason = dead_letter(pipeline)
    assert value == b"garbage"
    assert b"not an Arrow IPC stream" in reason


def test_rows_with_impossible_times_are_set_aside(pipeline):
    odd = encode("steps", table("steps", 3, start=[0, 1, 2]), source="n9/1", first_row=0)
    transport = KafkaTransport(pipeline.config)
    transport.send([Entry(segment=0, end=0, rows=3, data=odd), pipeline.message("n0/1")])
    transport.close()
    pipeline.start()
    pipeline.drain()
    pipeline.assert_each_once()
    assert pipeline.stored("SELECT sum(rows) FROM quarantine") == [3]


def test_a_batch_of_another_schema_goes_to_the_dead_letters_and_a_newer_one_is_stored(pipeline):
    """A wrong type is named; columns that only a newer writer knows are left out."""
    first, rows = pipeline.rows("n0/1")
    newer = pa.ipc.open_stream(encode("steps", rows, source="n0/1", first_row=first)).read_all()
    newer = newer.append_column("since_tomorrow", pa.array([1] * len(rows), pa.int64()))
    wrong = newer.set_column(3, "rank", newer["rank"].cast(pa.int64()))
    producer = KafkaProducer(bootstrap_servers=pipeline.config.servers)
    for table_of, source in ((wrong, b"n8/1"), (newer, b"n0/1")):
        meta = newer.schema.metadata | {b"pulsetrain.version": b"99", b"pulsetrain.source": source}
        producer.send(pipeline.config.topic("steps"), value=stream(table_of.replace_schema_metadata(meta)))
    producer.close()
    pipeline.start()
    pipeline.drain()
    pipeline.assert_each_once()
    assert b"steps.rank is int64; it must be int32" in dead_letter(pipeline)[1]


def test_partitions_that_are_added_while_it_runs_are_read_too(forked_pipeline):
    """The client joins its group again for them, which outlasts many of ingest's short looks."""
    pipeline = forked_pipeline
    transport = KafkaTransport(pipeline.config)
    pipeline.start()
    transport.send([pipeline.message("n0/1")])
    admin = KafkaAdminClient(bootstrap_servers=pipeline.config.servers)
    admin.create_partitions({pipeline.config.topic("steps"): 12})
    admin.close()
    deadline = time.monotonic() + 60
    while pipeline.logged("partitions_assigned") < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    transport.close()  # the next one sees all partitions
    transport.send([pipeline.message(f"n{source}/1") for source in range(1, 40)])
    transport.close()
    pipeline.drain()
    pipeline.assert_each_once()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_ingest_killed_at_random_points_loses_and_doubles_nothing(forked_pipeline):
    pipeline, rng = forked_pipeline, random.Random(7)
    transport = KafkaTransport(pipeline.config)

    def send_for(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            transport.send([pipeline.message(f"n{rng.randrange(4)}/1") for _ in range(3)])
            time.sleep(0.05)

    for kill in range(KILLS):
        begun = pipeline.logged("partitions_assigned")
        pipeline.start()
        if kill % 2:
            send_for(rng.uniform(0.05, 1.5))
        else:  # killed at work, not only on the way to it
            assert until(lambda begun=begun: pipeline.logged("partitions_assigned") > begun, 60)
            send_for(rng.uniform(0.0, 0.7))
        pipeline.kill()
    transport.close()
    pipeline.start()
    pipeline.drain()
    pipeline.assert_each_once()
