"""What `pulsetrain analyze` prints: the findings, and on request what every analyzer said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pulsetrain.analytics.analyze import analyze, for_device
from pulsetrain.analytics.slowness import mfu
from pulsetrain.analytics.verdict import (
    Failed,
    Healthy,
    Inconclusive,
    Verdict,
    asks_for_action,
    findings,
    state_of,
)
from pulsetrain.core.errors import UsageError
from pulsetrain.stream.queries.analysis import Queryable


def on_store(
    store: Queryable,
    job: str,
    *,
    since: int | None,
    until: int | None,
    attempt: int | None,
    device: mfu.Peak | None = None,
) -> list[Verdict]:
    """Every analyzer's verdict on the whole range, now. `device`: what all ranks run on, for the MFU."""
    return analyze(
        store,
        job,
        since=since,
        until=until,
        attempt=attempt,
        now_ns=time.time_ns(),
        scan=True,
        analyzers=for_device(device),
    )


def device_peak(text: str, site: Path | None = None, *, asked_by: str = "--device") -> mfu.Peak:
    """The peak of "DEVICE/DTYPE". Raises `UsageError`."""
    name, slash, dtype = text.partition("/")
    if not slash:
        raise UsageError(f"{asked_by} {text!r}: give DEVICE/DTYPE, such as H100-SXM/bf16")
    return mfu.peak(name, dtype, site)


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
            told.append(f"healthy: {verdict.analyzer}{_mfu_of(verdict)}")
        elif everything and isinstance(verdict, Inconclusive):
            told.append(
                f"{'blind' if verdict.blind else 'inconclusive'}: {verdict.analyzer}: {verdict.reason}"
            )
    return told


def status(verdicts: Sequence[Verdict]) -> int:
    """Exit status: 1 where a finding asks for action or an analyzer broke."""
    return int(asks_for_action(verdicts) or any(isinstance(v, Failed) for v in verdicts))


def _mfu_of(verdict: Healthy) -> str:
    numbers = verdict.numbers
    if "mfu" not in numbers:
        return ""
    return f": MFU {numbers['mfu']:.1%} of {numbers['device']} ({numbers['peak_source']})"
