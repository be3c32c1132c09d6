"""What an agent knows of its ranks' present attempt: who ended, and whether a first step is done."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from pulsetrain.agent import outcome
from pulsetrain.agent.warmup import Warmup
from pulsetrain.protocol.messages import FirstStep, RankExit, RankStatus, Start


class RankOfAttempt(Protocol):
    """A rank whose first step is awaited."""

    @property
    def rank(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    def status(self) -> RankStatus: ...


class AttemptState:
    """Exits and first step of the present attempt, and the exits of the one before. Thread-safe."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._exits: list[RankExit] = []
        self._earlier_exits: list[RankExit] = []
        self._warmup: Warmup | None = None
        self.world_nodes = 0  # of the attempt that was launched last

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ranks of the present attempt that ended, in order of time."""
        return tuple(self._exits)

    @property
    def culprit(self) -> RankExit | None:
        """The rank of this node that failed first, in the present attempt or the one stopped last."""
        return outcome.culprit(self._exits or self._earlier_exits)

    def launched(self, start: Start, began_ns: int) -> None:
        """Ranks of a new attempt are running. Its start began at `began_ns` (UTC)."""
        with self._lock:
            self._exits = [e for e in self._exits if e.attempt == start.attempt]  # one may have ended already
            self._earlier_exits = []
            self.world_nodes = start.node_count
            self._warmup = Warmup(
                node=self._node,
                attempt=start.attempt,
                restore_step=start.restore_step,
                began_ns=began_ns,
            )

    def stopped(self) -> None:
        """No rank is left, because the agent ended them."""
        with self._lock:
            self._earlier_exits, self._exits = self._exits or self._earlier_exits, []
            self._warmup = None

    def ended(self, report: RankExit, *, present: bool) -> None:
        """A rank ended: of the present attempt, or of one that was stopped since."""
        with self._lock:
            (self._exits if present else self._earlier_exits).append(report)

    def warming_up(self, now_ns: int) -> bool:
        """Whether a first step is expected soon."""
        warmup = self._warmup
        return warmup is not None and warmup.fresh(now_ns)

    @property
    def awaits_first_step(self) -> bool:
        """Whether ranks run whose first step was not reported."""
        warmup = self._warmup
        return warmup is not None and not warmup.reported

    def has_stepped(self, attempt: int) -> bool:
        """Whether the first step of this attempt was reported."""
        warmup = self._warmup
        return warmup is not None and warmup.attempt == attempt and warmup.reported

    def first_step(self, ranks: Iterable[RankOfAttempt], now_ns: int) -> FirstStep | None:
        """The report of the first step, once: at the first call at which every rank has done it."""
        with self._lock:
            warmup = self._warmup
            if warmup is None or warmup.reported:
                return None
            statuses = {r.rank: r.status() for r in ranks if r.attempt == warmup.attempt}
            report = warmup.observe(statuses, now_ns)
            warmup.reported = report is not None
            return report
