"""What `pulsetrain analyze` prints: the findings, and on request what every analyzer said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pulsetrain.analytics.analyze import analyze
from pulsetrain.analytics.verdict import (
    Failed,
    Healthy,
    Inconclusive,
    Verdict,
    asks_for_action,
    findings,
    state_of,
)
from pulsetrain.stream.queries.analysis import Queryable


def on_store(
    store: Queryable, job: str, *, since: int | None, until: int | None, attempt: int | None
) -> list[Verdict]:
    """Every analyzer's verdict on the whole range, now."""
    return analyze(store, job, since=since, until=until, attempt=attempt, now_ns=time.time_ns(), scan=True)


def rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The findings as rows of the `findings` record, the most severe and surest first."""
    order = {"critical": 0, "warning": 1, "info": 2}
    found = sorted(findings(verdicts), key=lambda f: (order[f.severity], -f.confidence, f.kind, f.subject))
    return [f.row() for f in found]


def states(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Every verdict as an object with its `state`."""
    return [state_of(v) for v in verdicts]


def lines(verdicts: Sequence[Verdict], *, everything: bool) -> list[str]:
    """The same for people. An analyzer that failed is never left out."""
    told = [
        f"{r['severity']}: {r['kind']}: {r['summary']} (confidence {r['confidence']:.2f})"
        for r in rows(verdicts)
    ]
    told = told or ["No finding."]
    for verdict in verdicts:
        if isinstance(verdict, Failed):
            told.append(f"failed: {verdict.analyzer}: {verdict.error}")
        elif everything and isinstance(verdict, Healthy):
            told.append(f"healthy: {verdict.analyzer}")
        elif everything and isinstance(verdict, Inconclusive):
            told.append(
                f"{'blind' if verdict.blind else 'inconclusive'}: {verdict.analyzer}: {verdict.reason}"
            )
    return told


def status(verdicts: Sequence[Verdict]) -> int:
    """Exit status: 1 where a finding asks for action or an analyzer broke."""
    return int(asks_for_action(verdicts) or any(isinstance(v, Failed) for v in verdicts))
