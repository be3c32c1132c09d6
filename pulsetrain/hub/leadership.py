"""One of several hubs leads. The others wait, and one of them leads once the leader's lease has ended."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import StrEnum
from typing import Protocol

import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.kv.election import Election
from pulsetrain.kv.store import Compare

log = structlog.get_logger()

RENEWALS = 3  # in the time of one lease
WAIT_S = 1.0  # for a change of the leader's key, in one turn
GUARD_S = 0.1
STALE_S = 10.0
ALONE_S = 3600.0


class Role(StrEnum):
    """What a hub is now."""

    ALONE = "alone"
    WAITING = "waiting"
    LEADER = "leader"
    DEPOSED = "deposed"


class Leadership(Protocol):
    """Says whether this hub may decide."""

    @property
    def role(self) -> Role:
        """What this hub is now."""
        ...

    def leader(self) -> str:
        """The URL of the hub that leads, as it was last seen, "" where none is known."""
        ...

    def confirm(self) -> Future[float]:
        """The seconds from now for which this hub certainly leads, 0 where another one may."""
        ...


class Alone:
    """The only hub of its data folder: it always leads."""

    role = Role.ALONE

    def __init__(self, url: str) -> None:
        self._url = url

    def leader(self) -> str:
        """See `Leadership`."""
        return self._url

    def confirm(self) -> Future[float]:
        """See `Leadership`."""
        leads: Future[float] = Future()
        leads.set_result(ALONE_S)
        return leads


class Candidate:
    """Waits, leads, and then never leads again: a hub that was deposed ends.

    `prepare` runs on the thread of the election before this hub leads. If it raises, this hub tries again.
    The loop of the election belongs to `start` and `stop`. `role` goes by this machine's clock, so that it is
    right even where the thread stands still.
    """

    def __init__(self, election: Election, prepare: Callable[[], None], clock: Clock) -> None:
        self._election, self._prepare = election, prepare
        self._led = self._deposed = False
        self._leader = ""
        self._asked: queue.SimpleQueue[Future[float]] = queue.SimpleQueue()
        self._thread = LoopThread("election", self.turn, stale_after_s=STALE_S, clock=clock)

    @property
    def role(self) -> Role:
        """See `Leadership`."""
        if self._led and not self._election.leading:
            self._deposed = True
        if self._deposed:
            return Role.DEPOSED
        return Role.LEADER if self._led else Role.WAITING

    def leader(self) -> str:
        """See `Leadership`."""
        return self._leader

    def confirm(self) -> Future[float]:
        """See `Leadership`. The store answers all who ask at the same time at once."""
        leads: Future[float] = Future()
        self._asked.put(leads)
        self._thread.wake()
        return leads

    def fence(self) -> tuple[Compare, ...]:
        """The condition of every write of this hub."""
        return (self._election.fence(),)

    def depose(self) -> None:
        """A write was refused: another hub leads."""
        self._deposed = True

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def stop(self) -> None:
        """End. A leader gives up its lease, so that the next one need not wait for its end."""
        if self._thread.running and self._thread.stop():
            self._election.resign()

    def status(self) -> LoopStatus:
        """How the election's thread is."""
        return self._thread.status()

    def _seen(self) -> str:
        """The URL in the leader's name, which has a number of its process behind it."""
        return self._election.leader().partition("#")[0]

    def turn(self) -> float:
        """Keep the lease, or wait for the lead. Whoever asked `confirm` before gets an answer."""
        asked, leads_s = self._all_asked(), 0.0
        try:
            if self.role is Role.LEADER and asked:
                leads_s = self._election.confirm()
                return self._election.ttl_s / RENEWALS
            return self._advance()
        finally:
            for future in asked:
                future.set_result(leads_s)

    def _all_asked(self) -> list[Future[float]]:
        """Who waits for an answer. Nobody can take back the question from here on."""
        asked = []
        with contextlib.suppress(queue.Empty):
            while True:
                future = self._asked.get_nowait()
                if future.set_running_or_notify_cancel():
                    asked.append(future)
        return asked

    def _advance(self) -> float:
        if self.role is Role.DEPOSED:
            return WAIT_S
        if self._led:
            self._election.renew()
            return self._election.ttl_s / RENEWALS
        self._leader = self._seen()
        if not self._election.campaign(WAIT_S):
            return 0.0
        self._prepare()
        self._leader = self._seen()
        self._led = self._election.leading
        log.info("leads", leader=self._leader)
        return 0.0


class LeaderCollector(Collector):
    """Whether this hub leads, in Prometheus' format."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The family without a sample."""
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """1 for the hub that decides, 0 for one that waits."""
        family = self._family()
        family.add_metric([], float(self._leadership.role in (Role.ALONE, Role.LEADER)))
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily("pulsetrain_hub_leading", "Whether this hub leads: 1, or waits: 0.")
