"""What `pulsetrain analyze` prints: the findings, and on request the verdict of every analyzer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pulsetrain.analytics.analyze import StepRange, analyze, for_device
from pulsetrain.analytics.slowness import device_peaks
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
from pulsetrain.stream.queries.queryable import Queryable

_SEVERITY_ORDER: Mapping[str, int] = {"critical": 0, "warning": 1, "info": 2}


def verdicts_from_store(
    store: Queryable,
    job: str,
    *,
    since: int | None,
    until: int | None,
    attempt: int | None,
    device: device_peaks.Peak | None = None,
) -> list[Verdict]:
    """Return every analyzer's verdict on steps `since`..`until`. Raises as `analyze`.

    `device` is what all ranks run on. Without it the MFU is unknown.
    """
    if since is not None and until is not None and since > until:
        raise UsageError(f"--since {since} is after --until {until}")
    return analyze(
        store,
        job,
        StepRange(since=since, until=until),
        attempt=attempt,
        now_ns=time.time_ns(),
        scan=True,
        analyzers=for_device(device),
    )


def device_peak(text: str, site: Path | None = None, *, option: str = "--device") -> device_peaks.Peak:
    """Return the peak rate of "DEVICE/DTYPE", from the table `site` or else from ours.

    Raises `UsageError` for another form or an unknown device. The message names `option`.
    """
    name, slash, dtype = text.partition("/")
    if not slash:
        raise UsageError(f"{option} {text!r}: give DEVICE/DTYPE, such as H100-SXM/bf16")
    return device_peaks.peak(name, dtype, site)


def rows(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """Return the findings as rows of the `findings` record, the most severe and most confident first."""
    ordered = sorted(
        findings(verdicts), key=lambda f: (_SEVERITY_ORDER[f.severity], -f.confidence, f.kind, f.subject)
    )
    return [finding.row() for finding in ordered]


def states(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """Return every verdict as a JSON object with its `state`."""
    return [state_of(v) for v in verdicts]


def lines(verdicts: Sequence[Verdict], *, everything: bool) -> list[str]:
    """Return the findings as text, one a line.

    An analyzer that failed always has a line, and what was not looked at. `everything` adds healthy,
    inconclusive and blind ones.
    """
    text = [
        f"{r['severity']}: {r['kind']}: {r['summary']} (confidence {r['confidence']:.2f})"
        for r in rows(verdicts)
    ]
    text = text or ["No finding."]
    for verdict in verdicts:
        if isinstance(verdict, Failed):
            text.append(f"failed: {verdict.analyzer}: {verdict.error}")
        elif everything and isinstance(verdict, Healthy):
            text.append(f"healthy: {verdict.analyzer}{_numbers_text(verdict)}")
        elif isinstance(verdict, Inconclusive) and (everything or verdict.analyzer == "analyze"):
            state = "blind" if verdict.blind else "inconclusive"
            text.append(f"{state}: {verdict.analyzer}: {verdict.reason}{_numbers_text(verdict)}")
    return text


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Return 1 where a finding asks for action or an analyzer failed, else 0."""
    return int(asks_for_action(verdicts) or any(isinstance(v, Failed) for v in verdicts))


def _numbers_text(verdict: Healthy | Inconclusive) -> str:
    """What the numbers of a verdict say to people, "" for nothing."""
    numbers = verdict.numbers
    if "mfu" in numbers:
        return f": MFU {numbers['mfu']:.1%} of {numbers['device']} ({numbers['peak_source']})"
    if numbers.get("alone"):
        return f": {numbers['alone']} of {numbers['ranks']} ranks were compared with their own past only"
    return ""
