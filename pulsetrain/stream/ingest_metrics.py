"""What a hub says of its ingest in Prometheus' format, at ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class IntakeMetrics:
    """Counters of one intake, in a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.rows = Counter("pulsetrain_ingest_rows", "Rows stored.", ["record"], registry=self.registry)
        self.repeated = Counter(
            "pulsetrain_ingest_repeated_rows",
            "Rows that came again and were not stored again.",
            ["record"],
            registry=self.registry,
        )
        self.bytes = Counter("pulsetrain_ingest_bytes", "Bytes of batches received.", registry=self.registry)
        self.refused = Counter(
            "pulsetrain_ingest_refused_batches",
            "Batches that could not be read or do not fit their record.",
            registry=self.registry,
        )
        self.quarantined = Counter(
            "pulsetrain_ingest_quarantined_rows",
            "Rows set aside for an impossible time.",
            ["record"],
            registry=self.registry,
        )
        self.failures = Counter(
            "pulsetrain_ingest_failed_inserts",
            "Inserts that failed; their rows come again.",
            ["record"],
            registry=self.registry,
        )
        self.waiting = Gauge(
            "pulsetrain_ingest_waiting_rows", "Rows that wait for their insert.", registry=self.registry
        )
        self.seen = Gauge(
            "pulsetrain_ingest_last_seen_timestamp_seconds",
            "When the last batch of a node was stored.",
            ["node"],
            registry=self.registry,
        )
        self.insert_seconds = Histogram(
            "pulsetrain_ingest_insert_seconds",
            "Time of one insert.",
            buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
            registry=self.registry,
        )

    @contextmanager
    def insert(self, record: str) -> Iterator[None]:
        """Time one insert; a failure is counted."""
        started = time.perf_counter()
        try:
            yield
        except Exception:
            self.failures.labels(record).inc()
            raise
        finally:
            self.insert_seconds.observe(time.perf_counter() - started)

    def text(self) -> bytes:
        """Everything in the exposition format."""
        return bytes(generate_latest(self.registry))
