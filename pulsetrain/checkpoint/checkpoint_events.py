"""What the checkpoint service did, as rows of `checkpoints` and `events`, until the agent ships them."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import structlog

from pulsetrain.records.columns import Columns
from pulsetrain.records.schema import RECORDS

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which job and node the rows are about."""

    job: str
    node: str


class SavedCheckpoint(Protocol):
    """One rank's checkpoint of one step."""

    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


class CheckpointEvents:
    """Rows that wait to be taken. Thread-safe. When nobody takes them, the oldest are dropped and counted."""

    def __init__(self, origin: Origin, *, limit: int = 10_000) -> None:
        self.origin = origin
        self.attempt = -1
        self.dropped = 0
        self._rows: dict[str, deque[dict[str, object]]] = {
            name: deque(maxlen=limit) for name in ("checkpoints", "events")
        }
        self._lock = Lock()

    def stage(
        self,
        stage: str,
        tier: str,
        *,
        rank: int,
        step: int,
        size: int = 0,
        duration_ns: int = 0,
        ts_ns: int = 0,
    ) -> None:
        """One stage of one checkpoint. `ts_ns` of 0 is now."""
        self._add(
            "checkpoints",
            ts=ts_ns or time.time_ns(),
            rank=rank,
            step=step,
            stage=stage,
            tier=tier,
            bytes=size,
            duration_ns=duration_ns,
        )

    def slot_stage(
        self, stage: str, tier: str, saved: SavedCheckpoint, took_ns: int, *, ts_ns: int = 0
    ) -> None:
        """One stage of a whole checkpoint that took `took_ns`. `ts_ns` of 0 is now."""
        self.stage(
            stage,
            tier,
            rank=saved.rank,
            step=saved.step,
            size=saved.total_bytes,
            duration_ns=took_ns,
            ts_ns=ts_ns,
        )

    def event(self, kind: str, detail: Mapping[str, object], *, rank: int = -1) -> None:
        """Something an operator should be able to read later. It is logged too."""
        log.info(kind, rank=rank, **detail)
        self._add("events", ts=time.time_ns(), rank=rank, kind=kind, actor="agent", detail=json.dumps(detail))

    def take(self, *records: str) -> list[Columns]:
        """The rows since the last call, one batch for each record that has any.

        Without names, of all records.
        """
        with self._lock:
            taken = {name: list(self._rows[name]) for name in records or self._rows}
            for name in taken:
                self._rows[name].clear()
        return [Columns.from_rows(name, rows) for name, rows in taken.items() if rows]

    def _add(self, record: str, **values: object) -> None:
        fields = {"job": self.origin.job, "node": self.origin.node, "attempt": self.attempt, **values}
        row = {name: fields[name] for name in RECORDS[record].names}
        with self._lock:
            rows = self._rows[record]
            self.dropped += len(rows) == rows.maxlen
            rows.append(row)
