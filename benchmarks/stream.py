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
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from pulsetrain.collectors.drain import Drain
from pulsetrain.collectors.ring import RingReader, RingWriter, create_ring
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.stream.batch import encode, identify
from pulsetrain.stream.clock import SystemClock
from pulsetrain.stream.kafka import KafkaConfig, KafkaTransport, headers_of
from pulsetrain.stream.lanes import Range
from pulsetrain.stream.metrics import IntakeMetrics
from pulsetrain.stream.spool import Spool
from pulsetrain.stream.store import Store, open_store
from pulsetrain.stream.turn import Preparer

ROOT = Path(__file__).resolve().parents[1]
DRAIN_S = 0.5  # how long an agent gathers before it sends
JOB = "bench-00000000"
LATENCY_ROWS_S = 100_000
INGEST_ROWS = 250_000  # rows of one insert, here and in the raw limit
GROUP = "bench"


@dataclass(frozen=True)
class Message:
    """An encoded batch and its rows."""

    data: bytes
    rows: int

    def of_pass(self, number: int) -> bytes:
        """The same rows as another job from other sources: both names stand uncompressed in the bytes."""
        return self.data.replace(JOB.encode(), f"bench-{number:08d}".encode())


def messages(rows: int, batch_rows: int) -> list[Message]:
    """About `rows` span rows of 1,024 simulated ranks, each message of one node."""
    spec = FleetSpec(ranks=1024, tp=8, pp=4, steps=10_000, job=JOB, start_ns=time.time_ns())
    made: list[Message] = []
    pending: dict[int, list[pa.Table]] = {}
    sent: dict[int, int] = {}
    total = 0
    for record, table in telemetry(spec, chunk_rows=1):
        if record != "spans":
            continue
        for node, part in _by_node(table, spec.ranks_per_node):
            pending.setdefault(node, []).append(part)
            if sum(map(len, pending[node])) >= batch_rows:
                whole = pa.concat_tables(pending.pop(node)).unify_dictionaries()
                source = f"{spec.node(node * spec.ranks_per_node)}/{JOB}"
                data = encode("spans", _compact(whole), source=source, first_row=sent.get(node, 0))
                sent[node] = sent.get(node, 0) + len(whole)
                made.append(Message(data, len(whole)))
                total += len(whole)
                if total >= rows:
                    return made
    raise AssertionError("the fleet's steps ran out")


def _by_node(table: pa.Table, ranks_per_node: int) -> Iterator[tuple[int, pa.Table]]:
    """Parts of a step's spans, which come by rank."""
    ranks = table["rank"].to_numpy() // ranks_per_node
    ends = [i for i in range(1, len(ranks)) if ranks[i] != ranks[i - 1]] if len(ranks) < 2 else _edges(ranks)
    begin = 0
    for end in [*ends, len(ranks)]:
        yield int(ranks[begin]), table.slice(begin, end - begin)
        begin = end


def _edges(values: Any) -> list[int]:
    return [int(i) + 1 for i in (values[1:] != values[:-1]).nonzero()[0]]


def _compact(table: pa.Table) -> pa.Table:
    """Dictionaries of only the names that occur, as an agent's have."""
    columns = [
        column.cast(pa.string()).dictionary_encode().cast(column.type)
        if pa.types.is_dictionary(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, schema=table.schema).combine_chunks()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[tuple[str, int]]:
    """A real broker; its address and its process. It ends with this process, however that ends."""
    port, controller = free_port(), free_port()
    with (folder / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            [ROOT / "deploy/kafka/start", str(port), str(folder / "kafka")],
            env=os.environ | {"CONTROLLER_PORT": str(controller)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            _await_port(port, process, folder / "kafka.log")
            yield f"127.0.0.1:{port}", process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.1)
    raise SystemExit(f"broker does not listen: {log.read_text()[-500:]}")


class IngestProcess:
    """`pulsetrain ingest` into a chDB folder."""

    def __init__(self, config: KafkaConfig, folder: Path) -> None:
        self.port = free_port()
        self._log = (folder / "ingest.log").open("wb")
        environ = {"PULSETRAIN_KAFKA_PREFIX": config.prefix, "PULSETRAIN_INGEST_ROWS": str(INGEST_ROWS)}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pulsetrain.cli", "ingest", "--kafka", config.servers),
                *("--store", f"chdb://{folder / 'store'}", "--metrics-port", str(self.port)),
                *("--group", GROUP, "--member", "only"),
            ],
            env=os.environ | environ,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            preexec_fn=_end_with_parent,
        )
        self.pid = self._process.pid

    def rows(self) -> int:
        """Span rows stored so far."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            if self._process.poll() is not None:
                raise SystemExit(
                    f"ingest ended with {self._process.returncode}; see {self._log.name}"
                ) from None
            return 0
        lines = [line for line in text.splitlines() if line.startswith("pulsetrain_ingest_rows_total{")]
        return int(sum(float(line.split()[-1]) for line in lines if 'record="spans"' in line))

    def await_rows(self, rows: int, seconds: float) -> None:
        """Wait until `rows` are stored, or no more than `seconds`."""
        deadline = time.monotonic() + seconds
        while self.rows() < rows and time.monotonic() < deadline:
            time.sleep(0.1)

    def peak_mib(self) -> float:
        """Peak resident memory of the process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024

    def stop(self) -> None:
        """End it in order."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()


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
        said = identify(data)
        job = f"bench-{self._number:08d}"
        self.rows_of[job] = self.rows_of.get(job, 0) + message.rows
        self.rows += message.rows
        self.bytes += len(data)
        self._at = (self._at + 1) % len(self._made)
        self._number += self._at == 0
        return self._producer.send(
            self._config.topic("spans"),
            key=said.source.partition("/")[0].encode(),
            value=data,
            headers=headers_of(said),
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
    places = [(due, future.get(timeout=30)) for due, future in sent]
    while time.perf_counter() < deadline:
        time.sleep(0.3)
        if all(commits.when(place.partition, place.offset) for _, place in places[-8:]):
            break
    commits.ended.set()
    commits.join()
    found = [(due, commits.when(place.partition, place.offset)) for due, place in places]
    return [(seen if seen is not None else float("inf")) - due for due, seen in found]


def raw_limit(made: Sequence[Message], folder: Path, seconds: float, result: Any) -> None:
    """Rows/s of decoding and inserting the same batches without Kafka, in a process of its own."""
    store, metrics = open_store(f"chdb://{folder}"), IntakeMetrics()
    store.migrate()
    preparer = Preparer(lambda _: "spans", _unreadable, SystemClock(), metrics)
    rows, began = 0, time.perf_counter()
    going: Future[None] | None = None
    with ThreadPoolExecutor(1) as storer:
        for each in _ranges(made):
            turn = preparer.turn([each])
            if going is not None:
                going.result()
            rows += each.rows
            going = storer.submit(turn.store, store, metrics, _at_once)
            if time.perf_counter() - began >= seconds:
                break
    result.put((rows, time.perf_counter() - began))
    store.close()


def _at_once(act: Callable[[], None]) -> None:
    act()


def _unreadable(_message: Any, reason: str) -> None:
    raise AssertionError(reason)


def _ranges(made: Sequence[Message]) -> Iterator[Range]:
    """The messages over and over, as ingest would take them from one partition."""
    offset = 0
    for number in itertools.count():
        group: list[Any] = []
        for message in made:
            group.append(_record(offset, message, number))
            offset += 1
            if sum(int(dict(m.headers)["rows"]) for m in group) >= INGEST_ROWS:
                yield Range(TopicPartition("raw", 0), group)
                group = []
        if group:
            yield Range(TopicPartition("raw", 0), group)


def _record(offset: int, message: Message, number: int) -> ConsumerRecord:
    data = message.of_pass(number)
    headers = headers_of(identify(data))
    return ConsumerRecord("raw", 0, -1, offset, 0, 0, None, data, headers, None, 0, len(data), 0)


def in_child(target: Any, *args: Any) -> Any:
    """What `target` puts into a queue, run in a new process: a chDB folder has one owner."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    child = context.Process(target=target, args=(*args, result))
    child.start()
    try:
        return result.get(timeout=300)
    finally:
        child.join(timeout=60)


def agent_side(config: KafkaConfig, folder: Path, rounds: int = 12) -> float:
    """Rows per CPU second from a full ring through drain, spool and producer until Kafka has them."""
    fd = create_ring()
    writer, reader = RingWriter(fd), RingReader(fd)
    drain = Drain(reader, job="agent", attempt=0, node="n", rank=0, local_rank=0, address="")
    spool, transport = Spool(folder / "spool"), KafkaTransport(config)
    phase = writer.intern("forward")
    rows, cpu = 0, 0.0
    rates = []
    for number in range(rounds):
        start = time.perf_counter_ns()
        for i in range(60_000):
            writer.span(phase, 0, start + i * 100, start + i * 100 + 80 + i % 7)
        before, done = time.process_time(), 0
        for record, batch in drain.batches(time.time_ns()):
            done += batch.num_rows if spool.append(record, batch) else 0
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


_SPAN_ID = "job, attempt, rank, step, start, phase, microbatch, `group`, seq, lane, parent"

# The table of the OpenTelemetry Collector's ClickHouse exporter for traces, as its README gives it.
_OTEL = """
CREATE TABLE otel_traces (
  Timestamp DateTime64(9) CODEC(Delta(8), ZSTD(1)), TraceId String CODEC(ZSTD(1)),
  SpanId String CODEC(ZSTD(1)), ParentSpanId String CODEC(ZSTD(1)), TraceState String CODEC(ZSTD(1)),
  SpanName LowCardinality(String) CODEC(ZSTD(1)), SpanKind LowCardinality(String) CODEC(ZSTD(1)),
  ServiceName LowCardinality(String) CODEC(ZSTD(1)),
  ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
  ScopeName String CODEC(ZSTD(1)), ScopeVersion String CODEC(ZSTD(1)),
  SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
  Duration UInt64 CODEC(ZSTD(1)), StatusCode LowCardinality(String) CODEC(ZSTD(1)),
  StatusMessage String CODEC(ZSTD(1)),
  Events Nested (Timestamp DateTime64(9), Name LowCardinality(String),
    Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
  Links Nested (TraceId String, SpanId String, TraceState String,
    Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
  INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX idx_res_attr_key mapKeys(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX idx_res_attr_value mapValues(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX idx_span_attr_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX idx_duration Duration TYPE minmax GRANULARITY 1
) ENGINE = MergeTree PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp)) SETTINGS index_granularity = 8192
"""
_OTEL_FILL = """
INSERT INTO otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanKind, ServiceName,
  ResourceAttributes, ScopeName, SpanAttributes, Duration, StatusCode)
SELECT start, lower(hex(sipHash128(job, attempt, step, rank))),
  lower(hex(sipHash64(rowNumberInAllBlocks(), rank, start))),
  if(parent = '', '', lower(hex(sipHash64(step, rank, parent, microbatch)))),
  phase, 'Internal', job,
  map('host.name', node, 'attempt', toString(attempt), 'rank', toString(rank)), 'pulsetrain',
  map('step', toString(step), 'microbatch', toString(microbatch), 'category', category, 'lane', lane,
    'group', `group`, 'seq', toString(seq), 'bytes', toString(bytes)),
  duration_ns, 'Unset'
FROM spans WHERE job = {job:String} LIMIT 1000000
"""


def _size(store: Store, table: str) -> tuple[int, int]:
    """(rows, bytes on disk) of a table's active parts."""
    sql = (
        "SELECT sum(rows) AS r, sum(bytes_on_disk) AS b FROM system.parts WHERE active AND table = {t:String}"
    )
    row = store.query(sql, {"t": table}).to_pylist()[0]
    return int(row["r"]), int(row["b"])


def inspect(folder: Path, expected: dict[str, int], result: Any) -> None:
    """Lost and doubled ids by job, bytes a row as it lies there and merged, and the other schema's."""
    store = open_store(f"chdb://{folder}")
    counts = f"SELECT job, count() AS n, uniqExact(sipHash128({_SPAN_ID})) AS ids FROM spans GROUP BY job"
    found = {row["job"]: (row["n"], row["ids"]) for row in store.query(counts).to_pylist()}
    lost = sum(max(0, rows - found.get(job, (0, 0))[1]) for job, rows in expected.items())
    doubled = sum(n - ids for n, ids in found.values())
    foreign = sum(n for job, (n, _) in found.items() if job not in expected)
    rows, size = _size(store, "spans")
    _, rollup = _size(store, "span_rollup")
    store.command(_OTEL)
    with store.client() as client:
        client.command(_OTEL_FILL, parameters={"job": JOB})
    store.command("OPTIMIZE TABLE otel_traces FINAL")
    other_rows, other = _size(store, "otel_traces")
    result.put(
        {
            "lost": lost,
            "doubled": doubled + foreign,
            "bytes_per_row_disk": size / max(1, rows),
            "bytes_per_row_rollup": rollup / max(1, rows),
            "otel_bytes_per_row_disk": other / max(1, other_rows),
            "rows": rows,
        }
    )
    store.close()


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
