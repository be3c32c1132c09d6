"""How an ingest that fell behind catches up: a bar in a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.progress import LINE_S, Report, has_bar, progress, unseen
from pulsetrain.stream.kafka.ingest import Backlog

log = structlog.get_logger()

BEHIND_S = 10.0
"""Age of the oldest message that waits, from which the ingest is behind. Its number of rows says little: a
message may hold one or 20,000."""
CAUGHT_UP_S = 4.0


def _bar() -> AbstractContextManager[Report]:
    """A bar where standard error is a terminal. Logs of other programs are not mixed with lines of text."""
    if not has_bar(sys.stderr):
        return contextlib.nullcontext(unseen)
    return progress("Catching up", unit="messages")


class CatchUp:
    """Takes the backlog after each look at Kafka. A context that removes the bar at its end."""

    def __init__(self, clock: Clock, show: Callable[[], AbstractContextManager[Report]] = _bar) -> None:
        self._clock, self._show = clock, show
        self._shown = contextlib.ExitStack()
        self._report: Report | None = None
        self._before = 0  # messages that were stored when it fell behind
        self._began_s = self._said_s = 0.0

    def __enter__(self) -> CatchUp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()

    def look(self, backlog: Backlog) -> None:
        """Show how far it has come, if it is behind."""
        now_s = self._clock.monotonic_s()
        if self._report is None:
            if backlog.age_s < BEHIND_S:
                return
            self._before, self._began_s, self._said_s = backlog.stored, now_s, now_s
            self._report = self._shown.enter_context(self._show())
            log.info("ingest_behind", messages=backlog.waiting, age_s=round(backlog.age_s, 1))
        done = backlog.stored - self._before
        if done < 0 or backlog.age_s < CAUGHT_UP_S:  # a new member begins to count from 0
            self._end(done, now_s)
            return
        self._report(done, done + backlog.waiting)
        if now_s - self._said_s >= LINE_S:
            self._said_s = now_s
            age_s = round(backlog.age_s, 1)
            log.info("ingest_catching_up", messages=backlog.waiting, stored=done, age_s=age_s)

    def _end(self, done: int, now_s: float) -> None:
        self._shown.close()
        self._report = None
        if done >= 0:
            log.info("ingest_caught_up", stored=done, seconds=round(now_s - self._began_s, 1))
