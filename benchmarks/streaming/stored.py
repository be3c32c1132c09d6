"""What lies in the store afterwards: lost and doubled ids, and its size beside OpenTelemetry's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pulsetrain.stream.store.clickhouse import Store, open_store
from streaming.messages import JOB

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
    stored = {row["job"]: (row["n"], row["ids"]) for row in store.query(counts).to_pylist()}
    lost = sum(max(0, rows - stored.get(job, (0, 0))[1]) for job, rows in expected.items())
    doubled = sum(n - ids for n, ids in stored.values())
    foreign = sum(n for job, (n, _) in stored.items() if job not in expected)
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
