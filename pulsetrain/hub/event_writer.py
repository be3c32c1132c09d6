"""The hub's own records: events and findings, written to the store from a thread of their own."""

from __future__ import annotations

import json
import math
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError, SchemaMismatch, Unavailable
from pulsetrain.core.supervisor import FailureCollector, LoopStatus, LoopThread
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.findings import Finding

log = structlog.get_logger()

FLUSH_S = 0.05  # rows gather for so long
IDLE_S = 1.0  # longest time that a turn waits for a row
STALE_S = 60.0
CLOSE_S = 10.0
KEPT_ROWS = 10_000  # while the store is away
AGAIN_S, LONGEST_AGAIN_S = 1.0, 30.0  # until what failed is tried again, the first time and later

Row = dict[str, object]


class RowStore(Protocol):
    """The store, as far as rows go in."""

    def insert(self, record: str, table: pa.Table, *, token: str) -> object:
        """Store the rows. Rows that come again under the same token are stored once."""
        ...


class Audit(Protocol):
    """Keeps events where nobody changes them unseen."""

    def append(self, events: Iterable[Mapping[str, object]]) -> None:
        """Keep the events, and those that could not be kept before."""
        ...


@dataclass(kw_only=True)
class _Group:
    """Rows of one insert. Once it was `tried` it may be stored, so that no row may join it or leave it."""

    record: str
    token: str
    rows: list[Row] = field(default_factory=list)
    tried: bool = False


class EventWriter:
    """A `Journal` that never blocks: rows wait in memory until the writer thread has stored them.

    What the store does not take is tried again under the same token. Up to 10,000 rows wait for that, the
    newest. `failed_rows` counts those that were given up.
    """

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
        self._groups: list[_Group] = []  # oldest first; they belong to the writer thread
        self._again_s, self._wait_s = -math.inf, 0.0
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
        """Store what is waiting and end the thread. What the store does not take now is lost."""
        if self._loop.stop(CLOSE_S):
            try:
                self._take_waiting([])
            finally:
                self._store_groups()
            self._lost(sum(len(group.rows) for group in self._groups), "the hub ends")
            self._groups.clear()

    def turn(self) -> float:
        """Wait for a row, let others join it, and store them all. Where the store did not take the last ones,
        they come first, and all wait for the time of the next try."""
        try:
            first = self._rows.get(timeout=IDLE_S)
        except queue.Empty:
            first = None
        if first is not None:
            self._gather(FLUSH_S)
        try:
            self._take_waiting([] if first is None else [first])
        finally:
            if self._groups and self._clock.monotonic_s() >= self._again_s:
                self._store_groups()
        return 0.0

    def _take_waiting(self, items: list[tuple[str, Row]]) -> None:
        """Put `items` and all that wait behind them into groups."""
        while not self._rows.empty():
            item = self._rows.get_nowait()
            if item is not None:
                items.append(item)
        for record, row in items:
            self._open_group(record).rows.append(row)
        self._drop_excess()
        if self._audit is not None:  # last: the store takes events also where this raises
            self._audit.append([row for record, row in items if record == "events"])

    def _open_group(self, record: str) -> _Group:
        """The group of a record that rows may still join."""
        for group in self._groups:
            if group.record == record and not group.tried:
                return group
        group = _Group(record=record, token=f"hub:{uuid.uuid4().hex}")
        self._groups.append(group)
        return group

    def _drop_excess(self) -> None:
        """While the store is away, give up the oldest rows beyond the bound.

        A group that may be stored goes as a whole.
        """
        if not self._wait_s:
            return
        excess = sum(len(group.rows) for group in self._groups) - KEPT_ROWS
        while excess > 0:
            oldest = self._groups[0]
            lost = len(oldest.rows) if oldest.tried else min(excess, len(oldest.rows))
            del oldest.rows[:lost]
            if not oldest.rows:
                del self._groups[0]
            excess -= lost
            self._lost(lost, "too many wait for the store")

    def _store_groups(self) -> None:
        """Try every group, oldest first, until the store does not answer. The others wait with it."""
        failures, failed = FailureCollector(), False
        for group in list(self._groups):
            with failures.collect(f"{len(group.rows)} rows of {group.record}"):
                try:
                    self._store_group(group)
                except PulsetrainError as error:
                    failed = True
                    if isinstance(error, Unavailable):
                        break
        self._wait_s = min(max(AGAIN_S, 2 * self._wait_s), LONGEST_AGAIN_S) if failed else 0.0
        self._again_s = self._clock.monotonic_s() + self._wait_s
        failures.raise_any()

    def _store_group(self, group: _Group) -> None:
        """Store a group or give it up. Raises `PulsetrainError` where it stays to be tried again."""
        group.tried = True
        try:
            self._insert(group)
        except (SchemaMismatch, pa.ArrowException) as error:
            self._lost(len(group.rows), str(error))
        except PulsetrainError as error:
            log.warning("event_write_failed", record=group.record, rows=len(group.rows), error=str(error))
            raise
        except Exception as error:
            self._lost(len(group.rows), str(error))
            self._groups.remove(group)
            raise
        else:
            self.written_rows += len(group.rows)
        self._groups.remove(group)

    def _insert(self, group: _Group) -> None:
        table = pa.Table.from_pylist(group.rows, schema=arrow_schema(group.record))
        self._store.insert(group.record, table, token=group.token)

    def _lost(self, rows: int, why: str) -> None:
        if rows:
            self.failed_rows += rows
            log.error("events_lost", rows=rows, why=why)
