"""Spans of a simulated fleet through a real Kafka broker and `pulsetrain ingest` into the store.

    python benchmarks/stream.py [--seconds 60] [--batch-rows 20000]

Everything runs on this machine: broker, producer, ingest (a process of its own) and store share its cores.
The producer sends batches that were encoded before, as fast as Kafka takes them; each pass over them belongs
to a job of its own, so that every row has an id (job, step, rank, start, phase, microbatch, group, seq) and
`lost` and `doubled` are counted by ids, not by totals. The raw limit decodes and inserts the same batches
without Kafka, in the same run and with ingest's own two threads: one decodes while the other inserts. Latency
is that of whole messages at 100,000 rows/s, from handing a message to the transport until its offset is
committed (which is after its insert), plus the half second that an agent gathers. The last line is one JSON
object. Needs Java 17 and, once, Maven.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from streaming.messages import Message, messages
from streaming.processes import GROUP, IngestProcess, broker, cpu_s, in_child
from streaming.raw import raw_limit
from streaming.stored import inspect

from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.records.batch import encode_columns, identify
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.transport import KafkaTransport, headers_of
from pulsetrain.stream.spool.queue import Spool

DRAIN_S = 0.5  # how long an agent gathers before it sends
LATENCY_ROWS_S = 100_000


class Feed:
    """Produces messages pass by pass; counts what every id must be."""

    def __init__(self, config: KafkaConfig, made: Sequence[Message]) -> None:
        self._config, self._made = config, made
        self._number = 0
        self._at = 0
        self.rows_of: dict[str, int] = {}
        self.rows = 0
        self.bytes = 0
        self._producer = KafkaProducer(
            bootstrap_servers=config.servers,
            acks="all",
            enable_idempotence=True,
            batch_size=1 << 20,
            linger_ms=5,
            max_request_size=8 << 20,
        )

    def send(self) -> Any:
        """The next message's future."""
        message = self._made[self._at]
        data = message.of_pass(self._number)
        identity = identify(data)
        job = f"bench-{self._number:08d}"
        self.rows_of[job] = self.rows_of.get(job, 0) + message.rows
        self.rows += message.rows
        self.bytes += len(data)
        self._at = (self._at + 1) % len(self._made)
        self._number += self._at == 0
        return self._producer.send(
            self._config.topic("spans"),
            key=identity.source.partition("/")[0].encode(),
            value=data,
            headers=headers_of(identity),
        )

    def next_job(self) -> None:
        """Begin the next pass at its first message."""
        self._at, self._number = 0, self._number + 1

    def flush(self) -> None:
        self._producer.flush(timeout=60)

    def close(self) -> None:
        self._producer.close(timeout=5)


def throughput(feed: Feed, ingest: IngestProcess, seconds: float, ahead: int = 6_000_000) -> dict[str, float]:
    """Feed for `seconds`, never more than `ahead` rows before the store; rows/s until all is stored."""
    began = time.perf_counter()
    before, fed = ingest.rows(), feed.rows
    while time.perf_counter() - began < seconds:
        if feed.rows - fed - (ingest.rows() - before) > ahead:
            time.sleep(0.05)
            continue
        for _ in range(10):
            feed.send()
    feed.flush()
    rows = feed.rows - fed
    ingest.await_rows(before + rows, 4 * seconds + 60)
    took = time.perf_counter() - began
    return {"rows": rows, "seconds": took, "rows_per_s": (ingest.rows() - before) / took}


class Commits(threading.Thread):
    """When each offset was seen committed: an upper bound of when it could be queried."""

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(daemon=True)
        self._consumer = KafkaConsumer(
            bootstrap_servers=config.servers, group_id=GROUP, enable_auto_commit=False
        )
        topic = config.topic("spans")
        self._partitions = [TopicPartition(topic, p) for p in self._consumer.partitions_for_topic(topic)]
        self.seen: list[tuple[float, int, int]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for partition in self._partitions:
                committed = self._consumer.committed(partition)
                if committed is not None:
                    self.seen.append((time.perf_counter(), partition.partition, int(committed)))
        self._consumer.close()

    def when(self, partition: int, offset: int) -> float | None:
        """The first time at which `offset` was behind the committed one."""
        return next((t for t, p, end in self.seen if p == partition and end > offset), None)


def latency(feed: Feed, commits: Commits, seconds: float, rows_each: int) -> list[float]:
    """Seconds from each message's sending to its commit, at 100,000 rows/s."""
    commits.start()
    sent: list[tuple[float, Any]] = []
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        due = began + len(sent) * rows_each / LATENCY_ROWS_S
        if due > now:
            time.sleep(min(due - now, 0.01))
            continue
        sent.append((due, feed.send()))
    feed.flush()
    deadline = time.perf_counter() + 30
    positions = [(due, future.get(timeout=30)) for due, future in sent]
    while time.perf_counter() < deadline:
        time.sleep(0.3)
        if all(commits.when(at.partition, at.offset) for _, at in positions[-8:]):
            break
    commits.ended.set()
    commits.join()
    times = [(due, commits.when(at.partition, at.offset)) for due, at in positions]
    return [(seen if seen is not None else float("inf")) - due for due, seen in times]


def agent_side(config: KafkaConfig, folder: Path, rounds: int = 12) -> float:
    """Rows per CPU second from a full ring through drain, spool and producer until Kafka has them."""
    fd = create_ring()
    writer, reader = RingWriter(fd), RingReader(fd)
    drain = Drain(reader, job="agent", attempt=0, node="n", rank=0, local_rank=0, address="")
    spool, transport = Spool(folder / "spool", encode=encode_columns), KafkaTransport(config)
    phase = writer.intern("forward")
    rows, cpu = 0, 0.0
    rates = []
    for number in range(rounds):
        start = time.perf_counter_ns()
        for i in range(60_000):
            writer.span(phase, 0, start + i * 100, start + i * 100 + 80 + i % 7)
        before, done = time.process_time(), 0
        for batch in drain.batches(time.time_ns()):
            done += batch.num_rows if spool.append(batch) else 0
        pending = spool.pending()
        transport.send(pending)
        spool.ack(pending[-1])
        spent = time.process_time() - before
        if number:  # the first one opens the connection
            rows, cpu = rows + done, cpu + spent
            rates.append(done / spent)
    transport.close()
    spool.close()
    return statistics.median(rates)


def measure(seconds: float, batch_rows: int, rows: int, folder: Path) -> dict[str, Any]:
    """The whole run."""
    made = messages(rows, batch_rows)
    small = messages(min(rows, 200_000), LATENCY_ROWS_S // 50)
    _say(f"{len(made)} messages of {made[0].rows} rows, {len(made[0].data) / made[0].rows:.1f} bytes a row")
    raw_rows, raw_s = in_child(raw_limit, made, folder / "raw", max(3.0, seconds / 3))
    _say(f"raw limit {raw_rows / raw_s:,.0f} rows/s")
    with broker(folder) as (servers, broker_pid):
        config = KafkaConfig(servers=servers, prefix="bench.")
        agent_rate = agent_side(KafkaConfig(servers=servers, prefix="agent."), folder)
        _say(f"agent side {agent_rate:,.0f} rows/s of one core")
        ingest = IngestProcess(config, folder)
        feed = Feed(config, made)
        try:
            feed.send()
            feed.flush()
            ingest.await_rows(1, 60)
            slow = Feed(config, small)
            slow._number = 50_000_000  # jobs of their own
            waits = sorted(latency(slow, Commits(config), min(20.0, seconds), small[0].rows))
            ingest.await_rows(feed.rows + slow.rows, 30)
            spent = {"broker": broker_pid, "ingest_and_store": ingest.pid, "producer": os.getpid()}
            before = {name: cpu_s(pid) for name, pid in spent.items()}
            flow = throughput(feed, ingest, seconds)
            cpu = {name: cpu_s(pid) - before[name] for name, pid in spent.items()}
            _say(f"{flow['rows']:,.0f} rows in {flow['seconds']:.1f} s: {flow['rows_per_s']:,.0f} rows/s")
            peak = ingest.peak_mib()
            slow.close()
        finally:
            feed.close()
            ingest.stop()
    report = in_child(inspect, folder / "store", feed.rows_of | slow.rows_of)
    p99 = waits[int(0.99 * (len(waits) - 1))]
    return {
        "rows_per_s": round(flow["rows_per_s"]),
        "raw_rows_per_s": round(raw_rows / raw_s),
        "ratio": round(flow["rows_per_s"] / (raw_rows / raw_s), 3),
        "agent_rows_per_s": round(agent_rate),
        "seconds": round(flow["seconds"], 1),
        "bytes_per_row_wire": round(feed.bytes / feed.rows, 2),
        "p99_latency_s": round(p99 + DRAIN_S, 3),
        "p99_message_latency_s": round(p99, 3),
        "p50_message_latency_s": round(waits[len(waits) // 2], 3),
        "ingest_peak_mib": round(peak),
        "rows_sent": feed.rows + slow.rows,
        "rows_a_message": made[0].rows,
        "cores": len(os.sched_getaffinity(0)),
        "cpu_us_per_row": {name: round(1e6 * took / flow["rows"], 3) for name, took in cpu.items()},
        "load_before": LOAD,
        **{k: round(v, 2) for k, v in report.items()},
    }


LOAD = round(os.getloadavg()[0], 1)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the producer feeds")
    parser.add_argument("--batch-rows", type=int, default=20_000, help="rows of one message")
    parser.add_argument(
        "--rows", type=int, default=3_000_000, help="rows that are made and sent pass by pass"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends in order
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as folder:
        print(json.dumps(measure(options.seconds, options.batch_rows, options.rows, Path(folder))))


if __name__ == "__main__":
    main()
