"""Prometheus metrics of records on their way into the store, served at ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pulsetrain.records.schema import RECORDS

_INSERT_SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class IngestMetrics:
    """Counters of one way into the store (HTTP or Kafka), in a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.rows = self._counter("rows", "Rows stored.", "record")
        self.repeated = self._counter(
            "repeated_rows", "Rows that came again and were not stored again.", "record"
        )
        self.bytes = self._counter("bytes", "Bytes of batches received.")
        self.refused = self._counter(
            "refused_batches", "Batches that could not be read or do not fit their record."
        )
        self.quarantined = self._counter(
            "quarantined_rows", "Rows set aside for an impossible time.", "record"
        )
        self.set_aside = self._counter(
            "set_aside_rows", "Rows set aside because the store refuses them alone as well.", "record"
        )
        self.failures = self._counter(
            "failed_inserts", "Inserts that failed; their rows come again.", "record"
        )
        self.waiting = self._gauge("waiting_rows", "Rows that wait for their insert.")
        self.behind = self._gauge("behind_messages", "Messages of Kafka that are not stored yet.")
        self.lag_seconds = self._gauge("lag_seconds", "Age of the oldest message that waits for its insert.")
        self.seen = self._gauge(
            "last_seen_timestamp_seconds", "When the last batch of a node was stored.", "node"
        )
        self.insert_seconds = Histogram(
            "pulsetrain_ingest_insert_seconds",
            "Time of one insert.",
            buckets=_INSERT_SECONDS,
            registry=self.registry,
        )

    @contextmanager
    def insert(self, record: str) -> Iterator[None]:
        """Time one insert. A failure is counted."""
        started = time.perf_counter()
        try:
            yield
        except Exception:
            self.failures.labels(record).inc()
            raise
        finally:
            self.insert_seconds.observe(time.perf_counter() - started)

    def forget(self, node: str) -> None:
        """A node is not seen any more."""
        with suppress(KeyError):  # nothing of it was stored since the start
            self.seen.remove(node)

    def text(self) -> bytes:
        """Everything in the exposition format."""
        return bytes(generate_latest(self.registry))

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """A counter that is 0 for every record from the start: a rule sees no first burst otherwise."""
        made = Counter(f"pulsetrain_ingest_{name}", meaning, labels, registry=self.registry)
        for record in RECORDS if labels == ("record",) else ():
            made.labels(record)
        return made

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"pulsetrain_ingest_{name}", meaning, labels, registry=self.registry)
