"""The verdicts that an analyzer can return: a finding, healthy, inconclusive or failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pulsetrain.records.findings import Finding, Severity, SubjectType

__all__ = [
    "Failed",
    "Finding",
    "Healthy",
    "Inconclusive",
    "Severity",
    "SubjectType",
    "Verdict",
    "asks_for_action",
    "findings",
    "guarded",
    "is_held",
    "not_known_now",
    "state_of",
]

NOT_KNOWN = "not_known_now"


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """The analyzer had the data it needs, and nothing is wrong. `numbers` say what it measured."""

    analyzer: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Inconclusive:
    """The analyzer cannot tell. `blind`: the data it needs is missing. Otherwise the data decides nothing.

    `numbers` say what it measured all the same.
    """

    analyzer: str
    reason: str
    blind: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The analyzer raised an exception. `error` is one line."""

    analyzer: str
    error: str


Verdict = Finding | Healthy | Inconclusive | Failed


def findings(verdicts: Iterable[Verdict]) -> list[Finding]:
    """Return only the findings, in order."""
    return [v for v in verdicts if isinstance(v, Finding)]


def asks_for_action(verdicts: Iterable[Verdict]) -> bool:
    """Whether any finding has a severity above "info"."""
    return any(f.severity != "info" for f in findings(verdicts))


def not_known_now(finding: Finding, reason: str) -> Finding:
    """Return a finding that was seen before, and of which its analyzer cannot tell now whether it goes on."""
    return replace(
        finding,
        summary=f"{finding.summary.rstrip('.')}; whether it goes on is not known now: {reason}",
        evidence={**finding.evidence, NOT_KNOWN: reason},
    )


def is_held(finding: Finding) -> bool:
    """Whether nobody sees a finding now, and nobody knows that it is over."""
    return NOT_KNOWN in finding.evidence


def guarded(analyzer: str, run: Callable[[], list[Verdict]]) -> list[Verdict]:
    """Return what `run` returns, or `Failed` where it raises. So one analyzer does not stop the others.

    >>> guarded("mfu", lambda: [1 / 0])
    [Failed(analyzer='mfu', error='ZeroDivisionError: division by zero')]
    """
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - the edge between an analyzer and everything else
        return [Failed(analyzer=analyzer, error=f"{type(error).__name__}: {' '.join(str(error).split())}")]


def state_of(verdict: Verdict) -> dict[str, object]:
    """Return the verdict as a JSON object. Its `state` is finding, healthy, inconclusive, blind or failed.

    >>> state_of(Inconclusive(analyzer="straggler", reason="one rank in its cohort"))["state"]
    'inconclusive'
    """
    if isinstance(verdict, Finding):
        return {"state": "finding", "analyzer": verdict.kind, **verdict.row()}
    if isinstance(verdict, Healthy):
        return {"state": "healthy", "analyzer": verdict.analyzer, "numbers": dict(verdict.numbers)}
    if isinstance(verdict, Inconclusive):
        return {
            "state": "blind" if verdict.blind else "inconclusive",
            "analyzer": verdict.analyzer,
            "reason": verdict.reason,
            **({"numbers": dict(verdict.numbers)} if verdict.numbers else {}),
        }
    return {"state": "failed", "analyzer": verdict.analyzer, "error": verdict.error}
