"""Writes to the spool on a thread of its own, so that a disk that hangs stops nobody else."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Protocol

import structlog

from pulsetrain.agent.sources import Sink, SinkAround
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.records.columns import Columns

log = structlog.get_logger()

PATIENCE_S = 2.0
"""A write that takes longer hangs. The hub waits longer for the reply to a stop."""
MAX_ROWS = 200_000
"""Rows that wait in memory while the disk hangs, about 20 MB."""
IDLE_S = 5.0
STALE_AFTER_S = 10.0
CLOSE_S = 10.0


class ClosableSink(Sink, Protocol):
    """A sink that is closed at the end."""

    def close(self) -> None: ...


class SpoolWriter(SinkAround):
    """A sink in front of the spool. Any thread may call it.

    `append` returns when the batch is written, as that of the spool does. While the disk hangs it waits
    `patience_s` once. Later batches wait in memory, `max_rows` rows at most, and are written in order when
    the disk answers. Rows beyond them are dropped and counted as `disk_hung`.
    """

    def __init__(
        self, spool: ClosableSink, *, patience_s: float = PATIENCE_S, max_rows: int = MAX_ROWS
    ) -> None:
        super().__init__(spool)
        self._spool, self._patience_s, self._max_rows = spool, patience_s, max_rows
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Columns, Future[bool]]] = deque()
        self._rows = self._disk_hung = 0
        self._hangs = False
        self._thread = LoopThread("spool_writer", self._turn, stale_after_s=STALE_AFTER_S)

    @property
    def loop(self) -> LoopStatus:
        """How the thread is."""
        return self._thread.status()

    @property
    def dropped(self) -> Mapping[str, int]:
        """See `Sink`."""
        lost = self._disk_hung
        return {**self._spool.dropped, **({"disk_hung": lost} if lost else {})}

    @property
    def dropped_rows(self) -> int:
        """See `Sink`."""
        return self._spool.dropped_rows + self._disk_hung

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def append(self, batch: Columns) -> bool:
        """See `Sink`. True also for a batch that waits in memory."""
        written: Future[bool] = Future()
        with self._lock:
            hangs = self._hangs
            if hangs and self._rows + batch.num_rows > self._max_rows:
                self._disk_hung += batch.num_rows
                return False
            self._waiting.append((batch, written))
            self._rows += batch.num_rows
        self._thread.wake()
        if hangs:
            return True
        wait([written], timeout=self._patience_s)
        if written.done():
            return written.result()
        self._hangs = True
        log.warning("spool_hangs", waited_s=self._patience_s)
        return True

    def close(self) -> None:
        """End the thread and close the spool. A disk that hangs is not waited for."""
        self._thread.stop(self._patience_s)
        closing = threading.Thread(target=self._spool.close, name="spool_close", daemon=True)
        closing.start()
        closing.join(self._patience_s if self._hangs else CLOSE_S)
        if closing.is_alive():
            log.warning("spool_not_closed", waiting_rows=self._rows)

    def _turn(self) -> float:
        """Write what waits."""
        while self._waiting:
            batch, written = self._waiting[0]
            try:
                written.set_result(self._spool.append(batch))
            except Exception as error:  # noqa: BLE001 - raised again to who waits for it
                written.set_exception(error)
            with self._lock:
                self._waiting.popleft()
                self._rows -= batch.num_rows
                self._hangs = self._hangs and bool(self._waiting)
        return IDLE_S
