"""Findings that checks of nodes, links and updates made, for as long as nothing says that they are over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pulsetrain.analytics.verdict import Finding
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub import arithmetic_findings, link_findings, update_findings
from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.hub.live_watch import FindingSink, Watched
from pulsetrain.recovery.snapshot import JobSnapshot

SOURCE = "checks"
PERIOD_S = 1.0

Source = Callable[[JobSnapshot], list[Finding]]
SOURCES: Sequence[Source] = (link_findings.found, arithmetic_findings.found, update_findings.found)


class CheckWatch:
    """Looks at what the last checks of each job named."""

    def __init__(self, jobs: Mapping[str, Watched], sink: FindingSink) -> None:
        self._jobs, self._sink = jobs, sink
        self._dedup: dict[str, FindingDedup] = {}

    async def turn(self) -> float:
        """Look at every job."""
        failures = FailureCollector()
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                self.look(job.snapshot())
        failures.raise_any()
        return PERIOD_S

    def look(self, job: JobSnapshot) -> None:
        """Look at one job."""
        seen = [finding for found in SOURCES for finding in found(job)]
        dedup = self._dedup.get(job.job)
        if dedup is None:
            if not seen:
                return
            dedup = self._dedup[job.job] = FindingDedup(patience=1)
        new = dedup.look(seen)
        self._sink.report(job.job, SOURCE, new, dedup.current())

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._dedup.pop(job, None)
