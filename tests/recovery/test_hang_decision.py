"""What a person decides on a hang that is named and not acted on."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.hang_decision import HangDecision, answer
from pulsetrain.recovery.hang_patience import PendingHang
from tests.recovery.builders import job_snapshot

PENDING = PendingHang(rank=3, since_ns=5, act_at_ns=None, why="because")


@pytest.mark.parametrize(
    ("what", "seconds"), [("never", 1.0), ("", 1.0), ("wait", 0.0), ("wait", -1.0), ("wait", 1e9)]
)
def test_other_decisions_are_refused_in_one_line(what, seconds):
    with pytest.raises(UsageError, match="allowed"):
        HangDecision(what=what, reason="r", actor="ann", seconds=seconds)


def test_the_event_says_what_was_decided_and_why():
    decision = HangDecision(what="wait", reason="debugging", actor="ann", seconds=60.0)
    assert decision.detail() == {"decision": "wait", "reason": "debugging", "seconds": 60.0}


@pytest.mark.parametrize(
    ("pending", "decision", "can_do"),
    [(None, "now", False), (None, "wait", True), (PENDING, "now", True), (PENDING, "", True)],
)
def test_the_answer_says_whether_the_decision_changes_anything(pending, decision, can_do):
    said = answer(job_snapshot(pending_hang=pending), decision, dry_run=True)
    assert (said["can_do"], said["decision"], said["dry_run"]) == (can_do, decision, True)
    assert said["pending_hang"] == (pending.row() if pending else None)
