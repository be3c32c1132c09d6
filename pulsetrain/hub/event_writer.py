"""The hub's own records: events and findings, written to the store from a thread of their own."""

from __future__ import annotations

import json
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.supervisor import FailureCollector, LoopStatus, LoopThread
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.findings import Finding

log = structlog.get_logger()

FLUSH_S = 0.05  # rows gather for so long
IDLE_S = 1.0  # longest time that a turn waits for a row
STALE_S = 60.0
CLOSE_S = 10.0

Row = dict[str, object]


class RowStore(Protocol):
    """The store, as far as rows go in."""

    def insert(self, record: str, table: pa.Table, *, token: str) -> object:
        """Store the rows. Rows that come again under the same token are stored once."""
        ...


class Audit(Protocol):
    """Keeps events where nobody changes them unseen."""

    def append(self, events: Iterable[Mapping[str, object]]) -> None:
        """Keep the events."""
        ...


class EventWriter:
    """A `Journal` that never blocks: rows wait in memory until the writer thread has stored them."""

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        *,
        audit: Audit | None = None,
        gather: Callable[[float], None] = time.sleep,
    ) -> None:
        self.failed_rows = 0
        self.written_rows = 0
        self._store, self._clock, self._gather, self._audit = store, clock, gather, audit
        self._rows: queue.SimpleQueue[tuple[str, Row] | None] = queue.SimpleQueue()
        self._loop = LoopThread(
            "event writer",
            self.turn,
            stale_after_s=STALE_S,
            clock=clock,
            interrupt=lambda: self._rows.put(None),
        )

    def start(self) -> None:
        """Begin to store what is written."""
        self._loop.start()

    def status(self) -> LoopStatus:
        """How the writer thread is."""
        return self._loop.status()

    def event(
        self,
        kind: str,
        *,
        job: str,
        attempt: int,
        detail: Mapping[str, object],
        node: str = "",
        rank: int = -1,
        actor: str = "controller",
    ) -> None:
        """Write one row of `events`. Its time is now."""
        log.info("event", kind=kind, job=job, attempt=attempt, node=node, rank=rank, actor=actor)
        row: Row = {
            "ts": self._clock.wall_ns(),
            "node": node,
            "job": job,
            "attempt": attempt,
            "rank": rank,
            "kind": kind,
            "actor": actor,
            "detail": json.dumps(detail, default=str),
        }
        self._rows.put(("events", row))

    def finding(self, finding: Finding) -> None:
        """Write one row of `findings`."""
        log.info("finding", kind=finding.kind, subject=finding.subject, summary=finding.summary)
        self._rows.put(("findings", finding.row()))

    def close(self) -> None:
        """Store what is waiting and end the thread."""
        if self._loop.stop(CLOSE_S):
            self._store_waiting({})

    def turn(self) -> float:
        """Wait for a row, let others join it, and store them all."""
        try:
            first = self._rows.get(timeout=IDLE_S)
        except queue.Empty:
            return 0.0
        if first is not None:
            self._gather(FLUSH_S)
            self._store_waiting({first[0]: [first[1]]})
        return 0.0

    def _store_waiting(self, rows: dict[str, list[Row]]) -> None:
        """Store `rows` and all that wait behind them."""
        while not self._rows.empty():
            item = self._rows.get_nowait()
            if item is not None:
                rows.setdefault(item[0], []).append(item[1])
        if self._audit is not None and "events" in rows:
            self._audit.append(rows["events"])
        failures = FailureCollector()
        for record, batch in rows.items():
            with failures.collect(f"{len(batch)} rows of {record}"):
                self._insert(record, batch)
        failures.raise_any()

    def _insert(self, record: str, rows: list[Row]) -> None:
        stored = False
        try:
            table = pa.Table.from_pylist(rows, schema=arrow_schema(record))
            self._store.insert(record, table, token=f"hub:{uuid.uuid4().hex}")
            stored = True
        except (PulsetrainError, pa.ArrowException) as error:
            log.exception("event_write_failed", record=record, rows=len(rows), error=str(error))
        finally:
            self.written_rows += len(rows) if stored else 0
            self.failed_rows += 0 if stored else len(rows)
