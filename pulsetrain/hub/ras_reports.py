"""Asks NCCL's RAS what every rank of a silent job has begun, and keeps the answer as evidence.

RAS of any one process knows of all of them, so one node is asked. Two reports a second apart are
compared. Nobody is asked while a job moves. Where there is no RAS, that is one line of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from pulsetrain.analytics import watch
from pulsetrain.analytics.hangs import ras, ras_lag
from pulsetrain.analytics.verdict import Finding, Verdict
from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.stacks import nearly_hung, with_evidence
from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.snapshot import JobSnapshot

log = structlog.get_logger()

NAME = "nccl_ras"
LIMIT_S = 9.0  # of one question: NCCL waits for processes that do not answer
PAUSE_S = 1.0  # between two reports. Both are there before a hang is named
AGAIN_S = 30.0  # least time between two readings that nobody asked for
MOST_NODES = 3  # that are asked until one knows


class RasSource(Protocol):
    """A job whose agents can be asked."""

    def snapshot(self) -> JobSnapshot:
        """The job as it is now."""
        ...

    async def read_ras(self, node: str, limit_s: float) -> Reply | None:
        """What RAS on that node says, None where the node cannot be asked."""
        ...


class RasReport(ras_lag.RasAccount):
    """What RAS said, whose it is, and which node was asked. `why` is who or what wanted it."""

    job: str
    attempt: int
    ts_ns: int
    why: str
    node: str


@dataclass
class _Memory:
    """What is known of one job. `evidence` is of a report taken while `attempt` was silent."""

    latest: RasReport | None = None
    evidence: RasReport | None = None
    attempt: int = -1
    silent: bool = False
    read_s: float = -1e9
    told: str = ""
    reading: asyncio.Task[RasReport] | None = None

    @property
    def busy(self) -> bool:
        return self.reading is not None and not self.reading.done()


class RasReports:
    """What RAS says of every job. All methods run on the hub's event loop.

    `stopped_s` is the silence of a stopped rank that counts as a hang. `pause_s` lies between two reports.
    """

    def __init__(
        self,
        jobs: Mapping[str, RasSource],
        journal: Journal,
        clock: Clock,
        background: TaskSupervisor,
        *,
        stopped_s: float,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._jobs, self._journal, self._clock, self._background = jobs, journal, clock, background
        self._stopped_s, self._pause_s = stopped_s, pause_s
        self._memories: dict[str, _Memory] = {}

    def latest(self, job: str) -> Mapping[str, object]:
        """The last report on a job, {} where there is none. Raises `UsageError` for an unknown job."""
        self._job(job)
        return self._of(job).latest or {}

    async def take(self, job: str, why: str) -> RasReport:
        """Make a new report. A call during another one gets the same report. `why` is kept with it.

        Raises `UsageError` for an unknown job.
        """
        return await asyncio.shield(self._read(self._job(job), self._of(job), why))

    def consider(self, job: JobSnapshot, view: watch.JobView, verdicts: Sequence[Verdict]) -> None:
        """Ask where the job is on its way to a hang."""
        memory, now_s = self._of(job.job), self._clock.monotonic_s()
        if job.attempt != memory.attempt:
            memory.attempt, memory.read_s, memory.evidence, memory.told = job.attempt, -1e9, None, ""
        memory.silent = nearly_hung(view, verdicts, self._stopped_s)
        if memory.silent and not memory.busy and now_s - memory.read_s > AGAIN_S:
            memory.read_s = now_s
            self._read(self._jobs[job.job], memory, "silence")

    def attach(self, job: str, attempt: int, findings: Sequence[Finding]) -> list[Finding]:
        """Hang findings with what RAS said in their attempt as evidence, where it said anything."""
        memory = self._of(job)
        report = memory.evidence
        if report is None or memory.attempt != attempt:
            return list(findings)
        evidence = {k: v for k, v in report.items() if k not in ("job", "attempt")}
        return with_evidence(
            findings, NAME, report["ts_ns"], lambda finding: {**evidence, "agrees": _agrees(finding, report)}
        )

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._memories.pop(job, None)

    def _job(self, name: str) -> RasSource:
        if name not in self._jobs:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise UsageError(f"no job {name!r} runs here; jobs here: {known}")
        return self._jobs[name]

    def _of(self, job: str) -> _Memory:
        return self._memories.setdefault(job, _Memory())

    def _read(self, job: RasSource, memory: _Memory, why: str) -> asyncio.Task[RasReport]:
        if memory.reading is None or memory.reading.done():
            memory.reading = self._background.once(NAME, self._take(job, memory, why))
        return memory.reading

    async def _take(self, job: RasSource, memory: _Memory, why: str) -> RasReport:
        before, silent = job.snapshot(), memory.silent
        node, told = await self._account(job, before)
        report: RasReport = {
            **told,
            "job": before.job,
            "attempt": before.attempt,
            "ts_ns": self._clock.wall_ns(),
            "why": why,
            "node": node,
        }
        memory.latest = report
        if report["state"] == "unknown":
            if report["sentence"] != memory.told:
                memory.told = report["sentence"]
                log.info("no_nccl_ras", job=before.job, why=memory.told)
            return report
        if silent and memory.attempt == before.attempt:
            memory.evidence = report
        detail = {k: v for k, v in report.items() if k not in ("job", "attempt")}
        self._journal.event(NAME, job=before.job, attempt=before.attempt, detail=detail, actor=why)
        return report

    async def _account(self, job: RasSource, before: JobSnapshot) -> tuple[str, ras_lag.RasAccount]:
        """Ask a node twice. Returns which one, and what it says."""
        why_not = "no node of the job can be asked for NCCL RAS"
        for node in [n.name for n in before.active()][:MOST_NODES]:
            try:
                first = await _ask(job, node)
                await asyncio.sleep(self._pause_s)
                second = await _ask(job, node)
            except CorruptData as error:
                why_not = f"{node}: {error}"
                continue
            now = job.snapshot()
            if (now.attempt, now.phase) != (before.attempt, before.phase):
                return node, ras_lag.unknown("the job was stopped while NCCL RAS was asked")
            told = await asyncio.to_thread(ras_lag.account, first, second, _processes(now))
            return node, told
        return "", ras_lag.unknown(why_not)


async def _ask(job: RasSource, node: str) -> ras.Report:
    """The report of one node. Raises `CorruptData` in one line where there is none."""
    reply = await job.read_ras(node, LIMIT_S)
    if reply is None or reply.error:
        raise CorruptData(reply.error if reply else "its agent is away")
    if "report" not in reply.data:
        raise CorruptData(str(reply.data.get("why_not", "its agent is of another version")))
    return await asyncio.to_thread(ras_lag.unpack, reply.data["report"])


def _processes(job: JobSnapshot) -> list[ras_lag.RankProcess]:
    """The processes of the ranks, as heartbeats have them."""
    addresses = {member.node: member.address for member in job.world}
    return [
        ras_lag.RankProcess(
            rank=status.rank, pid=status.pid, node=node.name, address=addresses.get(node.name, "")
        )
        for node, heartbeat in job.reporting()
        for status in heartbeat.ranks
    ]


def _agrees(finding: Finding, report: RasReport) -> bool | None:
    """Whether both name the same rank, None where one of them names none."""
    if finding.subject_type != "rank" or not report["culprits"]:
        return None
    return finding.subject in {str(rank) for rank in report["culprits"]}
