"""The verdicts of analyzers, and what is read from them."""

from __future__ import annotations

import json

import pytest

from pulsetrain.analytics.verdict import (
    Failed,
    Finding,
    Healthy,
    Inconclusive,
    asks_for_action,
    findings,
    guarded,
    state_of,
)


def finding(severity="warning"):
    return Finding(
        ts_ns=1,
        job="j",
        attempt=0,
        kind="hang",
        subject_type="rank",
        subject="3",
        severity=severity,
        confidence=0.9,
        summary="s",
    )


OTHERS = [Healthy(analyzer="a"), Inconclusive(analyzer="a", reason="r"), Failed(analyzer="a", error="e")]


def test_findings_are_taken_out_in_order():
    first, second = finding("info"), finding("critical")
    assert findings([first, *OTHERS, second]) == [first, second]


@pytest.mark.parametrize(("severity", "asks"), [("info", False), ("warning", True), ("critical", True)])
def test_more_than_information_asks_for_action(severity, asks):
    assert asks_for_action([*OTHERS, finding(severity)]) is asks
    assert not asks_for_action(OTHERS)


def test_an_analyzer_that_raises_has_failed_with_one_line():
    def run():
        raise ValueError("first line\n  second line")

    assert guarded("mfu", run) == [Failed(analyzer="mfu", error="ValueError: first line second line")]
    assert guarded("mfu", lambda: [OTHERS[0]]) == [OTHERS[0]]


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (finding(), "finding"),
        (Healthy(analyzer="hang", numbers={"steps": 3}), "healthy"),
        (Inconclusive(analyzer="hang", reason="r"), "inconclusive"),
        (Inconclusive(analyzer="hang", reason="r", blind=True), "blind"),
        (Failed(analyzer="hang", error="e"), "failed"),
    ],
)
def test_a_state_is_json_with_the_name_of_its_analyzer(verdict, state):
    shown = json.loads(json.dumps(state_of(verdict)))
    assert (shown["state"], shown["analyzer"]) == (state, "hang")
