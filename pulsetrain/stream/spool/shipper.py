"""The thread that moves a spool's batches over a transport."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.stream.spool.queue import Entry, Spool
from pulsetrain.stream.spool.transport import Rejection, Transport

_log = structlog.get_logger()

STALE_AFTER_S = 60.0  # sending one batch may take 30 s
PATIENCE = 4.0
"""So many times as long what is left is waited for, where the other side is there and only busy."""


@dataclass(frozen=True, kw_only=True)
class ShipperConfig:
    """How a shipper behaves."""

    idle_s: float = 0.5
    """Longest time between two looks at an empty spool; an append ends it at once."""
    gather_s: float = 0.05
    """After the first append to an empty spool, what follows within this time is sent with it."""
    first_backoff_s: float = 0.2
    """Pause after the first failure; it doubles with each further one."""
    max_backoff_s: float = 5.0
    """Longest pause between two tries."""
    sync_s: float = 1.0
    """How often the spool is brought to the disk."""

    def __post_init__(self) -> None:
        if not 0 < self.first_backoff_s <= self.max_backoff_s:
            raise ValueError(f"first_backoff_s = {self.first_backoff_s}: must be in 0..{self.max_backoff_s}")


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What a shipper has done since it started. `failing_since_s` is monotonic time, 0: it is not failing."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    rejected_rows: int = 0
    failures: int = 0
    failing_since_s: float = 0.0
    last_error: str = field(default="")


class Shipper:
    """A thread that moves a spool's entries over a transport, in order, for as long as it takes."""

    def __init__(self, spool: Spool, transport: Transport, *, config: ShipperConfig | None = None) -> None:
        self._spool = spool
        self._transport = transport
        self._config = config or ShipperConfig()
        self._shipped = Shipped()
        self._failures_in_a_row = 0
        self._synced_s = time.monotonic()
        self._thread = LoopThread("shipper", self._turn, stale_after_s=STALE_AFTER_S, interrupt=spool.wake)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def loop(self) -> LoopStatus:
        """How the thread is."""
        return self._thread.status()

    @property
    def shipped(self) -> Shipped:
        """Counters, a consistent copy."""
        return self._shipped

    def flush(self, timeout_s: float) -> bool:
        """Wait until the spool is empty, `PATIENCE` times as long while nothing fails; whether it is."""
        begin = time.monotonic()
        self._thread.wake()
        while self._spool.backlog:
            allowed_s = timeout_s if self._shipped.failing_since_s else PATIENCE * timeout_s
            if time.monotonic() - begin >= allowed_s:
                break
            time.sleep(0.01)
        return not self._spool.backlog

    def stop(self, *, drain_s: float = 0.0) -> None:
        """End the thread, after a `flush` of `drain_s` for what is still spooled; the rest stays on disk.
        Closes the transport, not the spool. Idempotent."""
        if drain_s and self._thread.running:
            self.flush(drain_s)
        self._thread.stop(timeout_s=10.0)
        self._transport.close()

    def _turn(self) -> float:
        self._failures_in_a_row = 0 if self._step() else self._failures_in_a_row + 1
        if time.monotonic() - self._synced_s >= self._config.sync_s:
            self._synced_s = time.monotonic()
            self._spool.sync()
        if self._failures_in_a_row:
            return self._pause_s(self._failures_in_a_row)
        if not self._spool.backlog:
            self._spool.wait(self._config.idle_s)
            return self._config.gather_s if self._spool.backlog else 0.0
        return 0.0

    def _pause_s(self, failures: int) -> float:
        """Exponential, with a quarter of jitter so that agents do not return all at once."""
        longest = min(self._config.max_backoff_s, self._config.first_backoff_s * 2.0 ** min(failures - 1, 16))
        return longest * random.uniform(0.75, 1.0)

    def _step(self) -> bool:
        """Send what is oldest; False where that failed."""
        try:
            entries = self._spool.pending()
        except OSError as error:
            self._failed(f"the spool cannot be read: {error}")
            return False
        if not entries:
            return True
        try:
            rejections = self._transport.send(entries)
        except PulsetrainError as error:
            self._failed(str(error))
            return False
        except Exception as error:  # noqa: BLE001 - edge of a thread: the queue waits, the failure is counted
            self._failed(f"{type(error).__name__}: {error}")
            return False
        for rejection in rejections:
            self._spool.reject(rejection.entry, rejection.why)
        self._spool.ack(entries[-1])
        self._delivered(entries, rejections)
        return True

    def _failed(self, why: str) -> None:
        before = self._shipped
        if not before.failing_since_s:
            _log.warning("shipping_failed", error=why, backlog=self._spool.backlog)
        self._shipped = replace(
            before,
            failures=before.failures + 1,
            last_error=why,
            failing_since_s=before.failing_since_s or time.monotonic(),
        )

    def _delivered(self, entries: Sequence[Entry], rejections: Sequence[Rejection]) -> None:
        before = self._shipped
        if before.failing_since_s:
            _log.info("shipping_again", after_s=round(time.monotonic() - before.failing_since_s, 1))
        refused = sum(r.entry.rows for r in rejections)
        self._shipped = replace(
            before,
            rows=before.rows + sum(e.rows for e in entries) - refused,
            batches=before.batches + len(entries) - len(rejections),
            bytes=before.bytes + sum(len(e.data) for e in entries),
            rejected_rows=before.rejected_rows + refused,
            failing_since_s=0.0,
            last_error="",
        )
