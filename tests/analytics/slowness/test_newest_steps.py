"""The newest steps are judged before all steps."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.newest_steps import RECENT, in_every_window, newest_first, worst
from pulsetrain.analytics.slowness.timings import from_matrices
from pulsetrain.analytics.verdict import Healthy, findings

JOB = from_matrices({"compute": np.ones((3, 2))})


def judge(least):
    """Finds a fault in at least so many steps; says how many it saw."""

    def look(rows):
        if len(rows) < least:
            return [Healthy(analyzer="x", numbers={"steps": len(rows)})]
        text = {"summary": str(len(rows)), "evidence": {}}
        return [JOB.finding("x", "job", "j", severity="info", confidence=1, **text)]

    return look


@pytest.mark.parametrize(("least", "seen"), [(1, RECENT), (RECENT, RECENT), (RECENT + 1, 100)])
def test_all_steps_are_judged_where_the_newest_show_nothing(least, seen):
    (finding,) = findings(newest_first(np.arange(100), judge(least)))
    assert finding.summary == str(seen)


def test_few_steps_are_judged_once():
    calls = []
    newest_first(np.arange(RECENT), lambda rows: calls.append(len(rows)) or [Healthy(analyzer="x")])
    assert calls == [RECENT]


def test_a_stretch_in_the_middle_is_found_where_every_window_is_judged():
    bad = np.arange(200)
    bad = (bad >= 80) & (bad < 130)

    def look(rows):
        if bad[rows].mean() < 0.9:
            return [Healthy(analyzer="x")]
        text = {"summary": f"{rows[0]}", "evidence": {}}
        return [JOB.finding("x", "job", "j", severity="info", confidence=1, **text)]

    assert not findings(newest_first(np.arange(200), look))
    assert len(findings(in_every_window(np.arange(200), look))) == 1
    for few in range(1, 2 * RECENT):
        assert in_every_window(np.arange(few), look)


def test_of_several_looks_each_finding_is_said_once_at_its_worst():
    def found(severity, confidence, subject="0"):
        text = {"summary": severity, "evidence": {}}
        return JOB.finding("x", "rank", subject, severity=severity, confidence=confidence, **text)

    looks = [[found("info", 0.9)], [found("warning", 0.6), found("info", 0.5, "1")], [found("warning", 0.7)]]
    assert [(f.subject, f.severity, f.confidence) for f in worst(looks)] == [
        ("0", "warning", 0.7),
        ("1", "info", 0.5),
    ]
    assert worst([]) == []
