"""A finding that stays is told once."""

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


def test_a_finding_is_told_when_it_begins_and_not_while_it_lasts():
    episodes = FindingDedup()
    assert episodes.look([finding()]) == [finding()]
    assert episodes.look([finding()]) == []


def test_a_short_gap_does_not_end_an_episode_and_a_long_one_does():
    episodes = FindingDedup(patience=2)
    episodes.look([finding()])
    episodes.look([])
    assert episodes.look([finding()]) == []
    episodes.look([])
    episodes.look([])
    assert episodes.current() == []
    assert episodes.look([finding()]) == [finding()]


def test_the_worst_comes_first():
    episodes = FindingDedup()
    episodes.look([finding(), finding(kind="hang", severity="critical")])
    assert [f.kind for f in episodes.current()] == ["hang", "straggler"]


def test_another_attempt_is_another_episode():
    episodes = FindingDedup()
    episodes.look([finding()])
    assert episodes.look([finding(attempt=1)]) == [finding(attempt=1)]


def test_what_is_unsure_is_told_when_a_second_look_finds_it_too():
    episodes = FindingDedup(sure=0.9)
    unsure = finding(confidence=0.7)
    assert episodes.look([unsure]) == []
    assert episodes.doubtful
    assert episodes.current() == []
    assert episodes.look([]) == []
    assert episodes.look([unsure]) == []
    assert episodes.look([unsure]) == [unsure]
    assert not episodes.doubtful
    assert episodes.current() == [unsure]


def test_what_is_sure_is_told_at_once():
    assert FindingDedup(sure=0.9).look([finding(confidence=0.95)]) == [finding(confidence=0.95)]
