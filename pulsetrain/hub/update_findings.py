"""A finding on an update that was rolled back. It stays until another update is asked for."""

from __future__ import annotations

from pulsetrain.analytics.verdict import Finding
from pulsetrain.hub.reporter import NO_ATTEMPT
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import TERMINAL


def found(job: JobSnapshot) -> list[Finding]:
    """A finding `update_rolled_back` on the job, if its newest update was.

    It is of no attempt: the job trains on as before, so its verdict is not that of the update.
    """
    outcome, now = job.updates.outcome, job.updates
    if outcome is None or outcome.end != "rolled_back" or now.number != outcome.number:
        return []
    if job.phase in TERMINAL:
        return []
    return [
        Finding(
            ts_ns=outcome.at_ns,
            job=job.job,
            attempt=NO_ATTEMPT,
            kind="update_rolled_back",
            subject_type="job",
            subject=job.job,
            severity="warning",
            confidence=1.0,
            summary=f"Update {outcome.number} of {job.job} was rolled back: {outcome.why}",
            evidence={"query": "events update_rolled_back", "number": outcome.number, "why": outcome.why},
        )
    ]
