"""A thread that does one thing again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()


class Ticker:
    """Calls `work` every `interval_s` on a thread of its own. What it raises is counted and logged once."""

    def __init__(self, name: str, interval_s: float, work: Callable[[], None]) -> None:
        self._work = work
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop after one last call, for which at most `timeout_s` is waited."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stopped.wait(self._interval_s)
            try:
                self._work()
            except Exception:
                self.failures += 1
                if self.failures == 1:
                    log.exception("ticker_failed", name=self._thread.name)
