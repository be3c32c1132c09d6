"""What `pulsetrain status` and the dashboard show: the hub, its jobs, and every loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from pulsetrain import __version__
from pulsetrain.analytics.slowness.slowest import Slowest
from pulsetrain.analytics.verdict import Finding, Verdict, state_of
from pulsetrain.core.clock import Clock
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.leadership import Leadership
from pulsetrain.hub.live_watch import Watched
from pulsetrain.hub.loops import LoopRow, LoopTable
from pulsetrain.hub.past_jobs import PastStatus
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.summary import Summary, summarize, worst_of
from pulsetrain.hub.unseen import unseen
from pulsetrain.recovery.pool_driver import PoolRow
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.view import JobRow, job_row


class RowCounts(Protocol):
    """How many rows of its own the hub has stored, and how many it could not store."""

    written_rows: int
    failed_rows: int


class StepClock(Protocol):
    """Knows how long a step of a job takes, and what the last look for a hang said."""

    def median_step_ns(self, job: str) -> int:
        """0 while unknown."""
        ...

    def verdicts(self, job: str) -> Sequence[Verdict]:
        """Also why a silence is no hang."""
        ...


class Ranking(Protocol):
    """Knows which ranks and nodes of a running job are slowest."""

    def slowest(self, job: str, attempt: int) -> Slowest | None:
        """None where that is not known yet."""
        ...


class PastRows(Protocol):
    """Knows the jobs that do not run here."""

    def rows(self) -> list[PastStatus]:
        """The newest first."""
        ...


class PoolView(Protocol):
    """Knows the pool of devices."""

    def row(self) -> PoolRow | None:
        """None where there is no pool."""
        ...


class JobStatus(JobRow):
    """A job with what the analyzers say of it."""

    verdict: Summary
    findings: list[JsonObject]
    detectors: list[JsonObject]
    median_step_s: float
    slowest: Slowest | None


class Status(TypedDict):
    """Everything. `hub` holds url, pid, data, started_ns, now_ns (the hub's clock), version and counters."""

    hub: dict[str, object]
    jobs: list[JobStatus]
    past_jobs: list[PastStatus]
    loops: list[LoopRow]
    pool: PoolRow | None


class StatusReport:
    """Puts the status together. `facts` are what the hub knows of itself from its start."""

    def __init__(
        self,
        facts: Mapping[str, object],
        jobs: Mapping[str, Watched],
        reporter: Reporter,
        steps: StepClock,
        rows: RowCounts,
        loops: LoopTable,
        past: PastRows,
        ranking: Ranking,
        clock: Clock,
        leadership: Leadership,
        pool: PoolView | None = None,
    ) -> None:
        self._facts, self._jobs, self._reporter = facts, jobs, reporter
        self._steps, self._rows, self._loops = steps, rows, loops
        self._past, self._ranking, self._clock = past, ranking, clock
        self._leadership, self._pool = leadership, pool

    def status(self) -> Status:
        """The hub as it is now."""
        counters = {
            "version": __version__,
            "role": self._leadership.role,
            "leader": self._leadership.leader(),
            "now_ns": self._clock.wall_ns(),
            "watch_failures": self._loops.hub_failures(),
            "written_rows": self._rows.written_rows,
            "unwritten_rows": self._rows.failed_rows,
        }
        loops = self._loops.rows()
        return {
            "hub": {**self._facts, **counters},
            "jobs": [self._job(job.snapshot(), loops) for job in self._jobs.values()],
            "past_jobs": self._past.rows(),
            "loops": loops,
            "pool": self._pool.row() if self._pool else None,
        }

    def _job(self, job: JobSnapshot, loops: Sequence[LoopRow]) -> JobStatus:
        findings = self._reporter.open(job.job, job.attempt)
        verdicts = self._verdicts(job.job)
        since = [self._reporter.since_ns(job.job, finding) for finding in findings]
        return {
            **job_row(job),
            "verdict": summarize(
                job, findings, self._worst_since_ns(job.job, findings), unseen(verdicts, loops)
            ),
            "findings": [
                {**finding.row(), "since_ns": began} for finding, began in zip(findings, since, strict=True)
            ],
            "detectors": [state_of(verdict) for verdict in verdicts],
            "median_step_s": self._steps.median_step_ns(job.job) / 1e9,
            "slowest": self._ranking.slowest(job.job, job.attempt),
        }

    def _worst_since_ns(self, job: str, findings: Sequence[Finding]) -> int:
        worst = worst_of(findings)
        return 0 if worst is None else self._reporter.since_ns(job, worst)

    def _verdicts(self, job: str) -> list[Verdict]:
        """What every detector said last. Findings of the live watch are listed as such."""
        live = [v for v in self._steps.verdicts(job) if not isinstance(v, Finding)]
        return [*live, *self._reporter.verdicts(job)]
