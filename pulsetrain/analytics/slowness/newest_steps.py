"""Judge the newest steps before all steps, so that earlier ones do not hide what has just begun.

Where a whole job is searched, judge windows of all steps too, so that later ones do not hide what ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.verdict import Finding, Healthy, Verdict, findings

RECENT = 40  # steps
_SEVERITIES = ("info", "warning", "critical")

Rows = NDArray[np.int64]


def newest_first(rows: Rows, judge: Callable[[Rows], list[Verdict]]) -> list[Verdict]:
    """What `judge` says of the newest of these rows, or of all of them where it finds nothing there."""
    newest = judge(rows[-RECENT:])
    return newest if len(rows) <= RECENT or findings(newest) else judge(rows)


def in_every_window(rows: Rows, judge: Callable[[Rows], list[Verdict]]) -> list[Verdict]:
    """As `newest_first`, and what `judge` says of any stretch of `RECENT` rows, every half length."""
    ends = range(len(rows) - RECENT // 2, RECENT - 1, -(RECENT // 2))
    return worst([newest_first(rows, judge), *(judge(rows[end - RECENT : end]) for end in ends)])


def worst(looks: Iterable[list[Verdict]]) -> list[Verdict]:
    """Return each finding of some looks once, as the look has it that shows it worst.

    Where none has a finding: that nothing is wrong, if one look says so, else what the first look says.
    """
    answers = list(looks)
    found: dict[tuple[str, str, str], Finding] = {}
    for finding in (f for answer in answers for f in findings(answer)):
        key = (finding.kind, finding.subject_type, finding.subject)
        if key not in found or _weight(finding) > _weight(found[key]):
            found[key] = finding
    healthy = (answer for answer in answers if any(isinstance(v, Healthy) for v in answer))
    return [*found.values()] or next(healthy, answers[0] if answers else [])


def _weight(finding: Finding) -> tuple[int, float]:
    return _SEVERITIES.index(finding.severity), finding.confidence
