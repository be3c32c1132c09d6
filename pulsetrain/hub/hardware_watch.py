"""Findings on machines: twice a second, from the signs that heartbeats carry, of standbys too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.analytics.machines import signs
from pulsetrain.analytics.machines.signs import JobLook, Machine, Tables
from pulsetrain.analytics.verdict import Finding
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.hub.live_watch import FindingSink, Watched
from pulsetrain.protocol.messages import HardwareSign
from pulsetrain.recovery.nodes import GONE
from pulsetrain.recovery.response import Response
from pulsetrain.recovery.snapshot import JobSnapshot, NodeSnapshot
from pulsetrain.recovery.transitions import TERMINAL

SOURCE = "hardware"
PERIOD_S = 0.5
SHARE = 5  # looking may use one fifth of the time
PATIENCE = 4


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What the signs of a machine meant in an attempt."""

    machine: Machine
    attempt: int
    findings: Sequence[Finding]


class HardwareWatch:
    """Looks at the machines of all jobs and reports what their signs mean."""

    def __init__(self, jobs: Mapping[str, Watched], sink: FindingSink, tables: Tables, clock: Clock) -> None:
        self._jobs, self._sink, self._tables, self._clock = jobs, sink, tables, clock
        self._dedup: dict[str, FindingDedup] = {}
        self._judged: dict[str, dict[str, _Judged]] = {}

    async def turn(self) -> float:
        """Look at every job."""
        began_s, failures = self._clock.monotonic_s(), FailureCollector()
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                await self._read(job.snapshot())
                if name in self._jobs:
                    self.look(job.snapshot())
                else:
                    self.forget(name)
        failures.raise_any()
        return max(PERIOD_S, (SHARE - 1) * (self._clock.monotonic_s() - began_s))

    async def _read(self, job: JobSnapshot) -> None:
        """Read the signs of a job, with pauses: those of a thousand sick machines take seconds."""
        if job.phase in TERMINAL:
            return
        look = JobLook(job=job.job, attempt=job.attempt, now_ns=job.now_ns)
        judged = self._judged.setdefault(job.job, {})
        for node in job.nodes:
            before = judged.get(node.name)
            after = judged[node.name] = self._judge(node, look, before)
            if after is not before and after.findings:
                await asyncio.sleep(0)

    def look(self, job: JobSnapshot) -> None:
        """Look at one job. A machine that is gone is not looked at any more."""
        dedup = self._dedup.get(job.job)
        if job.phase in TERMINAL or (dedup is None and not any(_signs(node) for node in job.nodes)):
            return
        if dedup is None:
            dedup = self._dedup[job.job] = FindingDedup(patience=PATIENCE)
        look = JobLook(job=job.job, attempt=job.attempt, now_ns=job.now_ns)
        before = self._judged.get(job.job, {})
        judged = {node.name: self._judge(node, look, before.get(node.name)) for node in job.nodes}
        self._judged[job.job] = judged
        seen = [f for each in judged.values() for f in each.findings if not _is_history(f, job.started_ns)]
        new = dedup.look(seen)
        names = {node.name for node in job.nodes if node.state not in GONE}
        still_open = [f for f in dedup.current() if f.evidence["node"] in names and f.attempt == job.attempt]
        self._sink.report(job.job, SOURCE, new, still_open)

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._dedup.pop(job, None)
        self._judged.pop(job, None)

    def _judge(self, node: NodeSnapshot, look: JobLook, before: _Judged | None) -> _Judged:
        """What the signs of a node mean. Those that say the same as at the last look are not read again."""
        machine = Machine(node=node.name, signs=_signs(node), gpus=node.hello.gpus)
        if before is not None and before.machine == machine and before.attempt == look.attempt:
            return before
        findings = signs.judge(machine, self._tables, look) if machine.signs else []
        return _Judged(machine=machine, attempt=look.attempt, findings=findings)


def _is_history(finding: Finding, started_ns: int) -> bool:
    """Whether it asks for nothing and came before the attempt. An earlier attempt was told of it."""
    return finding.evidence["response"] == Response.INFORM and finding.ts_ns < started_ns


def _signs(node: NodeSnapshot) -> Sequence[HardwareSign]:
    """What a node says of its hardware. Nothing where it is gone."""
    if node.heartbeat is None or node.state in GONE:
        return ()
    return node.heartbeat.hardware
