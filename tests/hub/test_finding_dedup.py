"""A finding that stays is reported once."""

from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.records.findings import Finding


def finding(kind="straggler", subject="3", severity="warning", attempt=0, confidence=0.9):
    return Finding(
        ts_ns=1,
        job="j",
        attempt=attempt,
        kind=kind,
        subject_type="rank",
        subject=subject,
        severity=severity,
        confidence=confidence,
        summary="s",
    )


def test_a_finding_is_reported_when_it_begins_and_not_while_it_lasts():
    dedup = FindingDedup()
    assert dedup.look([finding()]) == [finding()]
    assert dedup.look([finding()]) == []


def test_a_short_gap_does_not_end_an_open_finding_and_a_long_one_does():
    dedup = FindingDedup(patience=2)
    dedup.look([finding()])
    dedup.look([])
    assert dedup.look([finding()]) == []
    dedup.look([])
    dedup.look([])
    assert dedup.current() == []
    assert dedup.look([finding()]) == [finding()]


def test_the_worst_comes_first():
    dedup = FindingDedup()
    dedup.look([finding(), finding(kind="hang", severity="critical")])
    assert [f.kind for f in dedup.current()] == ["hang", "straggler"]


def test_another_attempt_is_another_finding():
    dedup = FindingDedup()
    dedup.look([finding()])
    assert dedup.look([finding(attempt=1)]) == [finding(attempt=1)]


def test_what_is_unsure_is_reported_when_a_second_look_sees_it_too():
    dedup = FindingDedup(sure=0.9)
    unsure = finding(confidence=0.7)
    assert dedup.look([unsure]) == []
    assert dedup.doubtful
    assert dedup.current() == []
    assert dedup.look([]) == []
    assert dedup.look([unsure]) == []
    assert dedup.look([unsure]) == [unsure]
    assert not dedup.doubtful
    assert dedup.current() == [unsure]


def test_what_is_sure_is_reported_at_once():
    assert FindingDedup(sure=0.9).look([finding(confidence=0.95)]) == [finding(confidence=0.95)]


def test_information_that_becomes_a_warning_is_reported_again_once():
    dedup = FindingDedup(sure=0.9)
    info, warning = (finding(severity=severity, confidence=0.95) for severity in ("info", "warning"))
    assert dedup.look([info]) == [info]
    assert dedup.look([warning]) == [warning]
    assert dedup.look([warning]) == []
    assert dedup.look([info]) == []
    assert dedup.look([warning]) == []
