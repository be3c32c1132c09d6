"""What an analyzer reports: the row type of the `findings` record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "critical"]
SubjectType = Literal["job", "node", "rank", "gpu", "link", "group", "stage"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One verdict that names something.

    `ts_ns` is UTC nanoseconds of the last row of evidence; `subject` is the rank's number, the node's name
    and so on; `confidence` is 0..1; `evidence` holds the query and the numbers that prove it.
    """

    ts_ns: int
    job: str
    attempt: int
    kind: str
    subject_type: SubjectType
    subject: str
    severity: Severity
    confidence: float
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The finding with the columns of the `findings` record; `ts` in nanoseconds, `evidence` as JSON."""
        return {
            "ts": self.ts_ns,
            "job": self.job,
            "attempt": self.attempt,
            "kind": self.kind,
            "subject_type": self.subject_type,
            "subject": self.subject,
            "severity": self.severity,
            "confidence": self.confidence,
            "summary": self.summary,
            "evidence": json.dumps(self.evidence, sort_keys=True, default=str),
        }


def recorded(job: str, row: Mapping[str, Any]) -> Finding:
    """The finding in a row of `queries.views.findings`; evidence that is no JSON is left out."""
    try:
        evidence = json.loads(row["evidence"] or "{}")
    except ValueError:
        evidence = {}
    names = ("ts_ns", "attempt", "kind", "subject_type", "subject", "severity", "confidence", "summary")
    return Finding(job=job, evidence=evidence, **{name: row[name] for name in names})
