"""Whether it is known that a finding is over: its analyzers may not be able to tell."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.analytics.incidents.alert_state import detectors
from pulsetrain.analytics.verdict import Failed, Finding, Inconclusive, Verdict, findings


def why_unknown(finding: Finding, verdicts: Sequence[Verdict]) -> str:
    """Why none of the analyzers that can raise a finding knows whether it goes on. "": one of them does.

    An analyzer knows where it finds anything or nothing. One that says nothing here is not asked for it.

    >>> slow = Finding(ts_ns=1, job="j", attempt=0, kind="straggler", subject_type="rank", subject="3",
    ...                severity="warning", confidence=0.9, summary="s")
    >>> why_unknown(slow, [Inconclusive(analyzer="straggler", reason="too few steps")])
    'too few steps'
    """
    told = {v.analyzer for v in verdicts if not isinstance(v, Finding | Failed | Inconclusive)}
    told |= {name for found in findings(verdicts) for name in detectors(found.kind)}
    unsure = {v.analyzer: v.reason for v in verdicts if isinstance(v, Inconclusive)}
    unsure |= {v.analyzer: v.error for v in verdicts if isinstance(v, Failed)}
    names = detectors(finding.kind)
    return unsure[names[0]] if all(name in unsure and name not in told for name in names) else ""
