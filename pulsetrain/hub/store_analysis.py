"""Findings from the stored records of running jobs.

Who is slow is asked each second, because it is told in steps. What else the steps show, and what machines
show, costs more and may come some seconds later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from pulsetrain.analytics.verdict import Finding, Verdict, findings
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.hub.live_watch import FindingSink, Watched
from pulsetrain.hub.storage_lag import StorageLag
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import Phase

SOURCE = "stored"
AGAIN_S = 0.4  # while a doubtful finding waits to be confirmed
STORE_SHARE = 5  # looking may use one fifth of the time
AGAIN_SHARE = 2  # and half of it while something doubtful waits
SURE = 0.9
PATIENCE_S = 3.0  # a finding that is absent for longer, and in two looks at least, has ended

Group = Literal["ranks", "steps", "machines"]
"""Analyzers that are asked together: who is slow, what else steps show, and what machines show."""

PERIODS_S: Mapping[Group, float] = MappingProxyType({"ranks": 1.0, "steps": 4.0, "machines": 5.0})
TURN_S = min(PERIODS_S.values())


class StoredRecords(Protocol):
    """What the analysis asks of the store. The calls block, so they run on a thread."""

    def look(
        self, job: str, attempt: int, now_ns: int, groups: Collection[Group]
    ) -> Mapping[Group, list[Verdict] | None]:
        """What the analyzers of each group say. None: nothing new was stored since its last look."""
        ...

    def newest_step(self, job: str, attempt: int) -> int:
        """The newest step that is stored, -1 for none."""
        ...


class AnalysisSink(FindingSink, Protocol):
    """Takes findings, and verdicts that are none."""

    def detectors(self, job: str, attempt: int, verdicts: Sequence[Verdict]) -> None:
        """What every detector of a job says now of an attempt, findings included."""
        ...


@dataclass(kw_only=True)
class _Said:
    """What one group of analyzers said last, and which of its findings are open."""

    dedup: FindingDedup
    verdicts: Sequence[Verdict] = ()
    looked_s: float = -math.inf

    def take(self, verdicts: Sequence[Verdict]) -> list[Finding]:
        """Take what was said now. Returns the findings that begin."""
        self.verdicts = verdicts
        return self.dedup.look(findings(verdicts))


def _every(period_s: float) -> _Said:
    """What is asked so often."""
    return _Said(dedup=FindingDedup(patience=max(2, round(PATIENCE_S / period_s)), sure=SURE))


@dataclass
class _Memory:
    """What is remembered of one attempt. `live` is what the hub sees without asking analyzers."""

    attempt: int = -1
    said: Mapping[Group, _Said] = field(
        default_factory=lambda: {group: _every(period_s) for group, period_s in PERIODS_S.items()}
    )
    live: _Said = field(default_factory=lambda: _every(TURN_S))
    lag: StorageLag = field(default_factory=StorageLag)

    @property
    def doubtful(self) -> bool:
        """Whether the last look found something that another look should confirm."""
        return any(said.dedup.doubtful for said in (*self.said.values(), self.live))

    def due(self, now_s: float) -> list[Group]:
        """The groups whose period is over, or who found something doubtful."""
        return [
            group
            for group, said in self.said.items()
            if said.dedup.doubtful or now_s - said.looked_s >= PERIODS_S[group]
        ]


class StoreAnalysis:
    """Runs the analyzers over the store for every job that trains.

    `stack_detector` says whether stacks of a job can be read.
    """

    def __init__(
        self,
        jobs: Mapping[str, Watched],
        records: StoredRecords,
        sink: AnalysisSink,
        clock: Clock,
        stack_detector: Callable[[str], Verdict],
    ) -> None:
        self._jobs, self._records, self._sink = jobs, records, sink
        self._clock, self._stack_detector = clock, stack_detector
        self._memories: dict[str, _Memory] = {}

    async def turn(self) -> float:
        """Look at every job. The next turn comes sooner to confirm a doubtful finding."""
        began_s, failures = self._clock.monotonic_s(), FailureCollector()
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                await self.look(job)
        failures.raise_any()
        took_s = self._clock.monotonic_s() - began_s
        doubtful = any(memory.doubtful for memory in self._memories.values())
        period_s, share = (AGAIN_S, AGAIN_SHARE) if doubtful else (TURN_S, STORE_SHARE)
        return max(period_s - took_s, (share - 1) * took_s)

    async def look(self, job: Watched) -> None:
        """Look at one job, if it trains."""
        before = job.snapshot()
        if before.phase is not Phase.RUNNING or not before.first_step_done:
            return
        memory = self._memories.get(before.job)
        if memory is None or memory.attempt != before.attempt:
            memory = self._memories[before.job] = _Memory(attempt=before.attempt)
        now_s = self._clock.monotonic_s()
        groups = memory.due(now_s)
        look = await asyncio.to_thread(self._records.look, before.job, before.attempt, before.now_ns, groups)
        newest_step = await asyncio.to_thread(self._records.newest_step, before.job, before.attempt)
        after = job.snapshot()
        if after.attempt != before.attempt:
            return
        for group in groups:
            memory.said[group].looked_s = now_s
        self._report(after, memory, look, newest_step)

    def _report(
        self,
        job: JobSnapshot,
        memory: _Memory,
        look: Mapping[Group, list[Verdict] | None],
        newest_step: int,
    ) -> None:
        new: list[Finding] = []
        for group, verdicts in look.items():
            if verdicts is not None:  # the same rows again confirm nothing, and end nothing
                new += memory.said[group].take(verdicts)
        new += memory.live.take([self._lag(job, memory, newest_step), self._stack_detector(job.job)])
        said = [memory.said["ranks"], memory.said["steps"], memory.live, memory.said["machines"]]
        self._sink.report(job.job, SOURCE, new, [f for each in said for f in each.dedup.current()])
        self._sink.detectors(job.job, job.attempt, [v for each in said for v in each.verdicts])

    def _lag(self, job: JobSnapshot, memory: _Memory, newest_step: int) -> Verdict:
        return memory.lag.look(
            job.job,
            job.attempt,
            stored_step=newest_step,
            live_step=job.last_step,
            now_s=self._clock.monotonic_s(),
            now_ns=job.now_ns,
        )
