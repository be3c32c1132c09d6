"""Findings on nodes whose arithmetic is wrong. They outlive the job: the machine is as it was."""

from __future__ import annotations

from pulsetrain.analytics.verdict import Finding
from pulsetrain.recovery.snapshot import JobSnapshot

CONFIDENCE = 0.97


def found(job: JobSnapshot) -> list[Finding]:
    """A finding `wrong_arithmetic` on each node that was not right since."""
    return [
        Finding(
            ts_ns=wrong.at_ns,
            job=job.job,
            attempt=job.attempt,
            kind="wrong_arithmetic",
            subject_type="node",
            subject=node,
            severity="critical",
            confidence=CONFIDENCE,
            summary=f"Node {node} computes wrongly: {wrong.reason}",
            evidence={"query": "events arithmetic_check", "node": node, "reason": wrong.reason},
        )
        for node, wrong in sorted(job.wrong_arithmetic.items())
    ]
