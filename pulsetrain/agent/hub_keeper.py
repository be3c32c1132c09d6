"""Starts the hub of a run again where it has ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

FIRST_WAIT_S, LAST_WAIT_S = 0.5, 8.0
SETTLED_S = 60.0
"""A hub that has run for so long was well."""
STARTS = 5
"""which fail one after another, before the hub is given up"""


class HubKeeper:
    """Keeps the hub of a run alive.

    `restart` starts it on the same folder and ports. Call `keep` on the main thread: the hub ends when the
    thread ends that started it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        restart: Callable[[], subprocess.Popen[bytes]],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.process = process
        self._restart, self._monotonic_s = restart, monotonic_s
        self._started_s = monotonic_s()
        self._due_s: float | None = None
        self._starts = 0

    def keep(self) -> bool:
        """Start the hub again where it has ended. False where that was tried in vain: it will not return."""
        code = self.process.poll()
        if code is None:
            return True
        now_s = self._monotonic_s()
        if self._due_s is None:
            if now_s - self._started_s > SETTLED_S:
                self._starts = 0
            if self._starts >= STARTS:
                return False
            log.error("hub_ended", pid=self.process.pid, code=code)
            self._due_s = now_s + min(FIRST_WAIT_S * 2**self._starts, LAST_WAIT_S)
        if now_s >= self._due_s:
            self._starts, self._started_s, self._due_s = self._starts + 1, now_s, None
            try:
                self.process = self._restart()
            except OSError as error:
                log.warning("hub_not_started", error=str(error))
        return True
