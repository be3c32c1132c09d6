"""A topic prefix, a store folder, and the `pulsetrain ingest` process between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from pulsetrain.records.batch import encode
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.spool.queue import Entry
from tests.stream.rows import table

ROWS = 50  # in a message


class Pipeline:
    """What is sent carries ids, so that what is stored can be held against it, row by row."""

    def __init__(self, broker, folder, forker=None):
        self.folder = folder
        self.config = KafkaConfig(servers=broker.servers, prefix=f"p{uuid.uuid4().hex[:8]}.", timeout_s=30)
        self.sent = []
        self.process = None
        self.log_file = folder.parent / "ingest.log"
        self._forker = forker
        self._next = Counter()

    def rows(self, source, rows=ROWS):
        """(first row, table) of a source's next rows; each row's id stands in column `step`."""
        first = self._next[source]
        self._next[source] += rows
        ids = [(int(source.partition("/")[0][1:]) << 32) + first + i for i in range(rows)]
        self.sent += ids
        return first, table("steps", rows, step=ids)

    def message(self, source, rows=ROWS):
        """One message of a source's next rows."""
        first, made = self.rows(source, rows)
        data = encode("steps", made, source=source, first_row=first)
        return Entry(segment=0, end=0, rows=rows, data=data)

    def start(self):
        if self._forker is None:
            self.process = self._command()
        else:
            self.process = self._forker.start(
                store=f"chdb://{self.folder}",
                servers=self.config.servers,
                prefix=self.config.prefix,
                group=self.config.prefix,
                log=str(self.log_file),
            )

    def _command(self):
        env = os.environ | {
            "PULSETRAIN_KAFKA_PREFIX": self.config.prefix,
            "PULSETRAIN_INGEST_LINGER_S": "0.1",
        }
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "pulsetrain.cli", "ingest", "--kafka", self.config.servers),
                    *("--store", f"chdb://{self.folder}", "--group", self.config.prefix, "--member", "only"),
                ],
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait(timeout=100)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def logged(self, event):
        """How often ingest logged `event`."""
        return self.log_file.read_text().count(f'"event": "{event}"') if self.log_file.exists() else 0

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

    def _behind(self):
        """Whether something is not committed yet; a broker that was held up is asked again."""
        try:
            return self.lag() > 0
        except KafkaError:
            return True

    def drain(self, seconds=110):
        """Wait until everything is committed, then end the ingest in order."""
        deadline = time.monotonic() + seconds
        while self._behind():
            assert self.process.poll() is None, self.log_file.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log_file.read_text()[-2000:]
            time.sleep(0.3)
        self.kill(signal.SIGTERM)
        assert self.process.returncode == 0

    def stored(self, sql="SELECT step FROM steps"):
        """Rows of a query, from a process of its own: a chDB folder has one owner."""
        code = (
            "import sys, json; from pulsetrain.stream.store.clickhouse import open_store;"
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

    def assert_each_once(self):
        """Every id that was sent is stored once, and no other."""
        assert Counter(self.stored()) == Counter(self.sent)
