"""What goes into Kafka is in the store once, whatever is killed on the way; proven by the rows' own ids."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from pulsetrain.stream.batch import encode, identify
from pulsetrain.stream.errors import Unavailable
from pulsetrain.stream.kafka import KafkaConfig, KafkaTransport, headers_of
from pulsetrain.stream.spool import Entry
from tests.kafka.conftest import Broker
from tests.stream.rows import table

pytestmark = [pytest.mark.kafka, pytest.mark.integration, pytest.mark.timeout(120)]

ROWS = 50  # in a message
LONG = pytest.mark.skipif(not os.environ.get("PULSETRAIN_LONG"), reason="minutes long: set PULSETRAIN_LONG=1")


class Pipeline:
    """A topic prefix, a store folder, and the `pulsetrain ingest` process between them."""

    def __init__(self, broker, folder):
        self.folder = folder
        self.config = KafkaConfig(servers=broker.servers, prefix=f"p{uuid.uuid4().hex[:8]}.", timeout_s=30)
        self.sent = []
        self.process = None
        self.log = (folder.parent / "ingest.log").open("ab")
        self._next = Counter()

    def message(self, source, rows=ROWS):
        """One message of a source's next rows; each row's id stands in column `step`."""
        first = self._next[source]
        self._next[source] += rows
        ids = [(int(source.partition("/")[0][1:]) << 32) + first + i for i in range(rows)]
        self.sent += ids
        data = encode("steps", table("steps", rows, step=ids), source=source, first_row=first)
        return Entry(segment=0, end=0, rows=rows, data=data)

    def start(self):
        env = os.environ | {
            "PULSETRAIN_KAFKA_PREFIX": self.config.prefix,
            "PULSETRAIN_INGEST_LINGER_S": "0.1",
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pulsetrain.cli", "ingest", "--kafka", self.config.servers),
                *("--store", f"chdb://{self.folder}", "--group", self.config.prefix, "--member", "only"),
            ],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait(timeout=30)

    def lag(self):
        """Messages that are not committed yet."""
        consumer = KafkaConsumer(bootstrap_servers=self.config.servers, group_id=self.config.prefix)
        try:
            topic = self.config.topic("steps")
            parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
            ends = consumer.end_offsets(parts)
            done = {p: consumer.committed(p, metadata=True) for p in parts}
            return sum(
                ends[p] - (done[p].offset if done[p] and not str(done[p].metadata).startswith("to ") else 0)
                for p in parts
            )
        finally:
            consumer.close()

    def drain(self, seconds=60):
        """Wait until everything is committed, then end the ingest in order."""
        deadline = time.monotonic() + seconds
        while self.lag() > 0:
            assert self.process.poll() is None, (self.folder.parent / "ingest.log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self.folder.parent / "ingest.log").read_text()[-2000:]
            time.sleep(0.3)
        self.kill(signal.SIGTERM)
        assert self.process.returncode == 0

    def stored(self, sql="SELECT step FROM steps"):
        """Rows of a query, from a process of its own: a chDB folder has one owner."""
        code = (
            "import sys, json; from pulsetrain.stream.store import open_store;"
            "rows = open_store(sys.argv[1]).query(sys.argv[2]).to_pylist();"
            "print(json.dumps([list(row.values()) for row in rows]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, f"chdb://{self.folder}", sql],
            capture_output=True,
            text=True,
            check=True,
        )
        return [row[0] for row in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture
def pipeline(broker, tmp_path):
    pipeline = Pipeline(broker, tmp_path / "store")
    yield pipeline
    if pipeline.process is not None and pipeline.process.poll() is None:
        pipeline.kill()
    pipeline.log.close()


def test_messages_that_come_twice_or_in_another_order_are_stored_once(pipeline):
    messages = [pipeline.message(f"n{s}/1") for s in range(4) for _ in range(10)]
    copies = messages + random.Random(1).sample(messages, 20)
    random.Random(2).shuffle(copies)
    transport = KafkaTransport(pipeline.config)
    transport.send(copies)
    transport.close()
    pipeline.start()
    pipeline.drain()
    assert Counter(pipeline.stored()) == Counter(pipeline.sent)


def test_what_cannot_be_read_goes_to_the_dead_letters_with_the_reason(pipeline):
    good = pipeline.message("n0/1")
    producer = KafkaProducer(bootstrap_servers=pipeline.config.servers)
    producer.send(pipeline.config.topic("steps"), value=b"garbage")
    producer.send(pipeline.config.topic("steps"), value=good.data, headers=headers_of(identify(good.data)))
    producer.close()
    pipeline.start()
    pipeline.drain()
    assert Counter(pipeline.stored()) == Counter(pipeline.sent)
    consumer = KafkaConsumer(
        pipeline.config.dead_letters,
        bootstrap_servers=pipeline.config.servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    message = next(consumer)
    consumer.close()
    assert message.value == b"garbage"
    assert b"not an Arrow IPC stream" in dict(message.headers)["reason"]


def test_rows_with_impossible_times_are_set_aside(pipeline):
    odd = encode("steps", table("steps", 3, start=[0, 1, 2]), source="n9/1", first_row=0)
    transport = KafkaTransport(pipeline.config)
    transport.send([Entry(segment=0, end=0, rows=3, data=odd), pipeline.message("n0/1")])
    transport.close()
    pipeline.start()
    pipeline.drain()
    assert Counter(pipeline.stored()) == Counter(pipeline.sent)
    assert pipeline.stored("SELECT sum(rows) FROM quarantine") == [3]


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [100])
def test_an_ingest_killed_at_random_points_loses_and_doubles_nothing(pipeline, kills):
    rng = random.Random(7)
    transport = KafkaTransport(pipeline.config)
    for _ in range(kills):
        pipeline.start()
        until = time.monotonic() + 1.0 + rng.random() * 1.5
        while time.monotonic() < until:
            transport.send([pipeline.message(f"n{rng.randrange(4)}/1") for _ in range(5)])
            time.sleep(0.02)
        pipeline.kill()
    transport.close()
    pipeline.start()
    pipeline.drain()
    assert Counter(pipeline.stored()) == Counter(pipeline.sent)


@LONG
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_broker_restarted_ten_times_costs_no_row(tmp_path):
    broker = Broker(tmp_path / "kafka").start()
    pipeline = Pipeline(broker, tmp_path / "store")
    transport = KafkaTransport(pipeline.config)
    try:
        pipeline.start()
        waiting = []
        for restart in range(11):
            waiting += [pipeline.message(f"n{s}/1") for s in range(4) for _ in range(5)]
            if restart:
                broker.stop()
                broker.start()
            deadline = time.monotonic() + 30
            while waiting and time.monotonic() < deadline:
                try:
                    transport.send(waiting)
                    waiting = []
                except Unavailable:
                    transport.close()
        assert not waiting
        pipeline.drain()
        assert Counter(pipeline.stored()) == Counter(pipeline.sent)
    finally:
        transport.close()
        if pipeline.process.poll() is None:
            pipeline.kill()
        pipeline.log.close()
        broker.stop()
