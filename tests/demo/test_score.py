"""What the demo says about a fault follows from what was injected and what was seen."""

from __future__ import annotations

import dataclasses

import pytest

from pulsetrain.demo import score
from pulsetrain.demo.score import Injection, SeenFinding

SECOND = 1_000_000_000
STOP = Injection(
    kind="stopped_rank",
    injected="rank 5",
    kinds=frozenset({"hang"}),
    accepted=frozenset({("rank", "5")}),
    at_ns=100 * SECOND,
    step=40,
    attempt=0,
)


def seen(subject: tuple[str, str], after_s: float, kind: str = "hang", step: int = 42) -> SeenFinding:
    at_ns = STOP.at_ns + round(after_s * SECOND)
    return SeenFinding(kind=kind, subject=subject, summary="", seen_ns=at_ns, step=step)


def judge(*findings: SeenFinding, resumed_s: float | None = 6.0) -> score.Outcome:
    return score.judge(
        STOP,
        findings,
        until_ns=STOP.at_ns + 20 * SECOND,
        resumed_ns=None if resumed_s is None else STOP.at_ns + round(resumed_s * SECOND),
        lost_steps=1,
    )


def test_the_injected_subject_alone_is_correct():
    assert judge(seen(("rank", "5"), 2.5)).row() == {
        "kind": "stopped_rank",
        "injected": "rank 5",
        "named": "rank 5",
        "correct": True,
        "detected_s": 2.5,
        "resumed_s": 6.0,
        "lost_steps": 1,
    }


def test_nobody_named_is_not_correct():
    row = judge(resumed_s=None).row()
    assert (row["named"], row["correct"], row["detected_s"], row["resumed_s"]) == ("", False, None, None)


def test_a_victim_named_beside_the_culprit_is_not_correct():
    outcome = judge(seen(("rank", "5"), 2.0), seen(("rank", "1"), 1.0))
    assert outcome.named == ("rank 1", "rank 5")
    assert not outcome.correct
    assert outcome.detected_s == 2.0


@pytest.mark.parametrize(
    "finding",
    [
        seen(("rank", "1"), -1.0),
        seen(("rank", "1"), 30.0),
        seen(("rank", "1"), 3.0, kind="nan"),
        seen(("job", "j"), 3.0),
    ],
    ids=["before", "after", "other kind", "accuses nobody"],
)
def test_what_is_not_about_the_fault_does_not_count(finding):
    assert judge(finding, seen(("rank", "5"), 2.0)).correct
    assert not judge(finding).correct


def test_a_rank_of_the_struck_node_is_told_with_its_node():
    slow = dataclasses.replace(
        STOP, injected="node-b", accepted=frozenset({("node", "node-b"), ("rank", "2"), ("rank", "3")})
    )
    outcome = score.judge(
        slow,
        [seen(("rank", "2"), 2.0), seen(("node", "node-b"), 3.0)],
        until_ns=slow.at_ns + 20 * SECOND,
        resumed_ns=slow.at_ns,
        lost_steps=0,
    )
    assert (outcome.named, outcome.correct) == (("node-b (rank 2)", "node-b"), True)


def test_detection_is_counted_in_steps_too():
    assert judge(seen(("rank", "5"), 2.0, step=47)).detected_steps == 7


def report(*outcomes: score.Outcome, reference: str = "abc") -> dict[str, object]:
    return score.report(
        outcomes, params_hash="abc", reference_hash=reference, steps=120, wall_s=60.123, overhead_ratio=1.0123
    )


def test_the_report_has_the_agreed_fields():
    found = report(judge())
    assert list(found) == [
        "faults", "params_hash", "reference_hash", "identical", "steps", "wall_s", "overhead_ratio"
    ]  # fmt: skip
    assert found["identical"] is True
    assert (found["wall_s"], found["overhead_ratio"]) == (60.12, 1.012)


def test_the_demo_passes_only_with_every_fault_named_and_equal_parameters():
    good, bad = judge(seen(("rank", "5"), 2.0)), judge()
    assert score.passed(report(good, good, good), 3)
    assert not score.passed(report(good, good), 3)
    assert not score.passed(report(good, bad, good), 3)
    assert not score.passed(report(good, good, good, reference="abd"), 3)


def test_no_hash_is_not_identical():
    found = score.report([], params_hash="", reference_hash="", steps=1, wall_s=0, overhead_ratio=None)
    assert found["identical"] is False


def test_the_tables_are_aligned_and_say_what_went_wrong():
    slow = dataclasses.replace(judge(seen(("rank", "5"), 2.0)), resumed_s=0.0)
    lines = score.fault_table([slow, judge()])
    assert lines[0].split("  ")[0] == "fault"
    assert "did not stop" in lines[1]
    assert "nobody  WRONG" in lines[2]
    detail = {"cause": "hang", "culprit": "rank 5", "stages_ns": {"detect": 2 * SECOND, "load": SECOND // 2}}
    table = score.stage_table([detail])
    assert table[1].split()[:6] == ["hang", "of", "rank", "5", "2.00", "s"]
    assert table[1].endswith("2.50 s")
