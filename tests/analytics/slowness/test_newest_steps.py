"""The newest steps are judged before all steps."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.newest_steps import RECENT, newest_first
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
