"""The hub's own records: events and findings, written to the store from a thread of their own."""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.findings import Finding
from pulsetrain.stream.store.clickhouse import Store

log = structlog.get_logger()

FLUSH_S = 0.05


class EventWriter:
    """A `Journal` that never blocks: rows wait in memory until the writer thread has stored them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.failed_rows = 0
        self.written_rows = 0
        self._store, self._clock = store, clock
        self._rows: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="desk", daemon=True)
        self._thread.start()

    def event(
        self,
        kind: str,
        *,
        job: str,
        attempt: int,
        detail: Mapping[str, Any],
        node: str = "",
        rank: int = -1,
        actor: str = "controller",
    ) -> None:
        """Write one row of `events`; its time is now."""
        log.info("event", kind=kind, job=job, attempt=attempt, node=node, rank=rank, actor=actor)
        row = {
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
        self._rows.put(None)
        self._thread.join(timeout=10)

    def _write(self) -> None:
        while True:
            item = self._rows.get()
            if item is None:
                return
            time.sleep(FLUSH_S)
            last = self._store_batch(item)
            if last:
                return

    def _store_batch(self, first: tuple[str, dict[str, Any]]) -> bool:
        """Store `first` and all that waits behind it; True where the end was among it."""
        rows: dict[str, list[dict[str, Any]]] = {}
        ended, item = False, first
        while True:
            rows.setdefault(item[0], []).append(item[1])
            try:
                following = self._rows.get_nowait()
            except queue.Empty:
                break
            if following is None:
                ended = True
                break
            item = following
        for record, batch in rows.items():
            self._insert(record, batch)
        return ended

    def _insert(self, record: str, rows: list[dict[str, Any]]) -> None:
        try:
            table = pa.Table.from_pylist(rows, schema=arrow_schema(record))
            self._store.insert(record, table, token=f"hub:{uuid.uuid4().hex}")
        except (PulsetrainError, pa.ArrowException) as error:
            self.failed_rows += len(rows)
            log.exception("desk_write_failed", record=record, rows=len(rows), error=str(error))
        else:
            self.written_rows += len(rows)
