"""What is read of a job that falls silent: stacks, and what NCCL's RAS says."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.analytics import watch
from pulsetrain.analytics.verdict import Finding, Verdict
from pulsetrain.hub.stacks import StackEvidence
from pulsetrain.recovery.snapshot import JobSnapshot


class HangEvidence:
    """Several kinds of evidence as one. See `StackEvidence`."""

    def __init__(self, *kinds: StackEvidence) -> None:
        self._kinds = kinds

    def consider(self, job: JobSnapshot, view: watch.JobView, verdicts: Sequence[Verdict]) -> None:
        """Begin to read where the job is on its way to a hang."""
        for kind in self._kinds:
            kind.consider(job, view, verdicts)

    def attach(self, job: str, attempt: int, findings: Sequence[Finding]) -> list[Finding]:
        """The findings, those of hangs with all evidence."""
        told = list(findings)
        for kind in self._kinds:
            told = kind.attach(job, attempt, told)
        return told
