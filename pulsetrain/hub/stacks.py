"""Decides when the stacks of a job are read, and keeps the last report as evidence.

Reading begins at half of the silence that counts as a hang. By the time the hang is named, its stacks are
there, and ending the ranks waits for nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pulsetrain.analytics import watch
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.stack_sampling import StackReport, StackSampler, StackSource
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.snapshot import JobSnapshot

NAME = "stacks"
EARLY = 0.5  # share of the silence that is a hang at which reading begins
AGAIN_S = 30.0  # least time between two readings that nobody asked for
FRESH_S = 90.0  # a report older than this proves nothing about a hang
SELF_TEST_S = 5.0  # after the first step: one rank a node is read, to see whether it can be done
MOST_BYTES = 1 << 18  # of a stored report. A larger one is stored without its tree.


class StackEvidence(Protocol):
    """What the live watch needs of the stacks."""

    def consider(self, job: JobSnapshot, view: watch.JobView, verdicts: Sequence[Verdict]) -> None:
        """Begin to read where the job is on its way to a hang."""
        ...

    def attach(self, job: str, attempt: int, findings: Sequence[Finding]) -> list[Finding]:
        """The findings, those of hangs with stacks as evidence."""
        ...


@dataclass
class _Memory:
    """What is known of one job's stacks. `evidence` is of a report taken while `attempt` was silent. `blind`
    says why stacks cannot be read, "" where they can, None while it was not tried."""

    latest: StackReport | None = None
    evidence: StackReport | None = None
    silent: bool = False
    attempt: int = -1
    read_s: float = -1e9
    tested_attempt: int = -1
    stepped_s: float | None = None
    blind: str | None = None
    reading: asyncio.Task[StackReport] | None = None
    testing: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the agents are being asked now."""
        return any(task is not None and not task.done() for task in (self.reading, self.testing))

    def begin_attempt(self, attempt: int) -> None:
        """Another attempt: nothing that was seen before is evidence."""
        if attempt != self.attempt:
            self.attempt, self.read_s, self.stepped_s, self.evidence = attempt, -1e9, None, None


class Stacks:
    """Reports on the stacks of every job. All methods run on the hub's event loop.

    `stopped_s` is the silence of a stopped rank that counts as a hang.
    """

    def __init__(
        self,
        jobs: Mapping[str, StackSource],
        journal: Journal,
        clock: Clock,
        background: TaskSupervisor,
        *,
        stopped_s: float,
        sampler: StackSampler | None = None,
    ) -> None:
        self._jobs, self._journal, self._clock = jobs, journal, clock
        self._background, self._stopped_s = background, stopped_s
        self._sampler = sampler or StackSampler(clock)
        self._memories: dict[str, _Memory] = {}

    def latest(self, job: str) -> Mapping[str, object]:
        """The last report on a job, {} where there is none. Raises `UsageError` for an unknown job."""
        self._job(job)
        return self._of(job).latest or {}

    async def take(self, job: str, why: str) -> StackReport:
        """Make a new report. A call during another one gets the same report. `why` is kept with it.

        Raises `UsageError` for an unknown job.
        """
        return await asyncio.shield(self._read(self._job(job), self._of(job), why))

    def consider(self, job: JobSnapshot, view: watch.JobView, verdicts: Sequence[Verdict]) -> None:
        """Begin to read where the job is on its way to a hang. Soon after the first step, try one rank."""
        memory, now_s = self._of(job.job), self._clock.monotonic_s()
        memory.begin_attempt(job.attempt)
        memory.silent = nearly_hung(view, verdicts, self._stopped_s)
        if memory.busy:
            return
        if memory.silent and now_s - memory.read_s > AGAIN_S:
            memory.read_s = now_s
            self._read(self._jobs[job.job], memory, "silence")
        elif job.first_step_done and memory.tested_attempt != job.attempt:
            memory.stepped_s = memory.stepped_s or now_s
            if now_s - memory.stepped_s > SELF_TEST_S:
                memory.tested_attempt = job.attempt
                memory.testing = self._background.once(NAME, self._self_test(self._jobs[job.job], memory))

    def attach(self, job: str, attempt: int, findings: Sequence[Finding]) -> list[Finding]:
        """Hang findings with the stacks of their attempt as evidence, where there are any."""
        memory = self._of(job)
        report = memory.evidence
        if report is None or memory.attempt != attempt:
            return list(findings)
        evidence = {k: v for k, v in report.items() if k not in ("tree", "job", "attempt")}
        return with_evidence(findings, NAME, report["ts_ns"], lambda finding: evidence)

    def detector(self, job: str) -> Verdict:
        """Whether stacks can be read."""
        blind = self._of(job).blind
        if blind is None:
            return Inconclusive(analyzer=NAME, reason="not tried yet in this attempt")
        if blind:
            return Inconclusive(analyzer=NAME, reason=blind, blind=True)
        return Healthy(analyzer=NAME)

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._memories.pop(job, None)

    def _job(self, name: str) -> StackSource:
        if name not in self._jobs:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise UsageError(f"no job {name!r} runs here; jobs here: {known}")
        return self._jobs[name]

    def _of(self, job: str) -> _Memory:
        return self._memories.setdefault(job, _Memory())

    def _read(self, job: StackSource, memory: _Memory, why: str) -> asyncio.Task[StackReport]:
        if memory.reading is None or memory.reading.done():
            memory.reading = self._background.once(NAME, self._take(job, memory, why))
        return memory.reading

    async def _take(self, job: StackSource, memory: _Memory, why: str) -> StackReport:
        silent = memory.silent

        def keep(report: StackReport) -> None:
            memory.latest, memory.tested_attempt = report, report["attempt"]
            if silent and memory.attempt == report["attempt"]:
                memory.evidence = report

        report = await self._sampler.take(job, why, keep)
        memory.blind = report["sentence"] if report["state"] == "blind" else ""
        self._journal.event(
            NAME, job=report["job"], attempt=report["attempt"], detail=_stored(report), actor=why
        )
        return report

    async def _self_test(self, job: StackSource, memory: _Memory) -> None:
        memory.blind = await self._sampler.self_test(job)


def with_evidence(
    findings: Sequence[Finding], name: str, ts_ns: int, evidence: Callable[[Finding], object]
) -> list[Finding]:
    """The findings, those of hangs with what was seen at `ts_ns`, unless that was long before."""
    return [
        replace(f, evidence={**f.evidence, name: evidence(f)})
        if f.kind == "hang" and f.ts_ns - ts_ns < FRESH_S * 1e9
        else f
        for f in findings
    ]


def nearly_hung(view: watch.JobView, verdicts: Sequence[Verdict], stopped_s: float) -> bool:
    """Whether nobody moved for half of the time that is a hang, or a stopped rank for half of its own."""
    for verdict in verdicts:
        if isinstance(verdict, Finding):
            return True
        if isinstance(verdict, Healthy):
            numbers = verdict.numbers
            if numbers["silence_ns"] > EARLY * numbers["limit_ns"]:
                return True
    if "stopped" not in view.states:
        return False
    limit_ns = EARLY * stopped_s * 1e9
    return any(
        state == "stopped" and age_ns > limit_ns
        for state, age_ns in zip(view.states, view.ages_ns, strict=True)
    )


def _stored(report: StackReport) -> dict[str, object]:
    """What is kept in the store: all of it, or without the tree where that is large."""
    detail = {k: v for k, v in report.items() if k not in ("job", "attempt")}
    if len(json.dumps(detail)) > MOST_BYTES:
        detail["tree"] = []
    return detail
