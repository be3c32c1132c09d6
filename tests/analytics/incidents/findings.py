"""Findings and alerts for the tests of incidents."""

from __future__ import annotations

from dataclasses import replace

from pulsetrain.analytics.incidents.alert_state import Alert, AlertConfig, after_finding
from pulsetrain.analytics.verdict import Finding

S = 1_000_000_000
T0 = 1_790_000_000 * S


def finding(
    kind: str = "hang",
    subject_type: str = "rank",
    subject: str = "3",
    *,
    at: int = T0,
    severity: str = "critical",
    job: str = "j",
    **evidence: object,
) -> Finding:
    return Finding(
        ts_ns=at,
        job=job,
        attempt=0,
        kind=kind,
        subject_type=subject_type,  # type: ignore[arg-type]
        subject=subject,
        severity=severity,  # type: ignore[arg-type]
        confidence=0.9,
        summary=f"{kind} of {subject_type} {subject}",
        evidence=evidence,
    )


def alert(
    kind: str = "hang",
    subject_type: str = "rank",
    subject: str = "3",
    *,
    config: AlertConfig | None = None,
    severity: str = "critical",
    job: str = "j",
    evidence: dict[str, object] | None = None,
    **fields: object,
) -> Alert:
    """An alert that fires since `T0`, with some fields replaced."""
    reported = finding(kind, subject_type, subject, severity=severity, job=job, **(evidence or {}))
    return replace(after_finding(None, reported, T0, config or AlertConfig()), **fields)  # type: ignore[arg-type]
