"""Findings from the stored records of running jobs: every 2 s, and every 5 s those of machines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsetrain.analytics.verdict import Finding, Verdict, findings
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.hub.live_watch import FindingSink, Watched
from pulsetrain.hub.storage_lag import StorageLag
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import Phase

SOURCE = "stored"
STORE_S = 2.0
AGAIN_S = 0.4  # while a doubtful finding waits to be confirmed
MACHINES_S = 5.0
STORE_SHARE = 5  # looking may use one fifth of the time
SURE = 0.9
PATIENCE = 3


class StoredRecords(Protocol):
    """What the analysis asks of the store. The calls block, so they run on a thread."""

    def verdicts(self, job: str, attempt: int, now_ns: int, *, machines: bool) -> list[Verdict] | None:
        """What the analyzers of machines, or those of steps and ranks, say. None: nothing new was stored
        since the last call."""
        ...

    def newest_step(self, job: str, attempt: int) -> int:
        """The newest step that is stored, -1 for none."""
        ...


class AnalysisSink(FindingSink, Protocol):
    """Takes findings, and verdicts that are none."""

    def detectors(self, job: str, attempt: int, verdicts: Sequence[Verdict]) -> None:
        """What every detector of a job says now of an attempt, findings included."""
        ...


def _dedup() -> FindingDedup:
    return FindingDedup(patience=PATIENCE, sure=SURE)


@dataclass
class _Memory:
    """What is remembered of one attempt."""

    attempt: int = -1
    steps: FindingDedup = field(default_factory=_dedup)
    machines: FindingDedup = field(default_factory=_dedup)
    step_verdicts: list[Verdict] = field(default_factory=list)
    machine_verdicts: list[Verdict] = field(default_factory=list)
    machines_s: float = -math.inf
    lag: StorageLag = field(default_factory=StorageLag)

    @property
    def doubtful(self) -> bool:
        """Whether the last look found something that another look should confirm."""
        return self.steps.doubtful or self.machines.doubtful


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What the store said. None where nothing new was stored, or machines were not looked at."""

    of_steps: list[Verdict] | None
    of_machines: list[Verdict] | None
    newest_step: int


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
        return max(AGAIN_S if doubtful else STORE_S, (STORE_SHARE - 1) * took_s)

    async def look(self, job: Watched) -> None:
        """Look at one job, if it trains."""
        before = job.snapshot()
        if before.phase is not Phase.RUNNING or not before.first_step_done:
            return
        memory = self._memories.get(before.job)
        if memory is None or memory.attempt != before.attempt:
            memory = self._memories[before.job] = _Memory(attempt=before.attempt)
        now_s = self._clock.monotonic_s()
        machines = memory.machines.doubtful or now_s - memory.machines_s >= MACHINES_S
        look = await self._ask(before, machines=machines)
        after = job.snapshot()
        if after.attempt != before.attempt:
            return
        self._report(after, memory, look)
        if machines:
            memory.machines_s = now_s

    async def _ask(self, job: JobSnapshot, *, machines: bool) -> _Look:
        def verdicts(*, machines: bool) -> list[Verdict] | None:
            return self._records.verdicts(job.job, job.attempt, job.now_ns, machines=machines)

        return _Look(
            of_steps=await asyncio.to_thread(verdicts, machines=False),
            of_machines=await asyncio.to_thread(verdicts, machines=True) if machines else None,
            newest_step=await asyncio.to_thread(self._records.newest_step, job.job, job.attempt),
        )

    def _report(self, job: JobSnapshot, memory: _Memory, look: _Look) -> None:
        new: list[Finding] = []
        if look.of_machines is not None:
            memory.machine_verdicts = look.of_machines
            new = memory.machines.look(findings(look.of_machines))
        if look.of_steps is not None:
            memory.step_verdicts = look.of_steps
        others = [self._lag(job, memory, look.newest_step), self._stack_detector(job.job)]
        if look.of_steps is not None or findings(others):  # the same rows again confirm nothing
            new = [*memory.steps.look(findings([*memory.step_verdicts, *others])), *new]
        self._sink.report(job.job, SOURCE, new, [*memory.steps.current(), *memory.machines.current()])
        self._sink.detectors(job.job, job.attempt, [*memory.step_verdicts, *others, *memory.machine_verdicts])

    def _lag(self, job: JobSnapshot, memory: _Memory, newest_step: int) -> Verdict:
        return memory.lag.look(
            job.job,
            job.attempt,
            stored_step=newest_step,
            live_step=job.last_step,
            now_s=self._clock.monotonic_s(),
            now_ns=job.now_ns,
        )
