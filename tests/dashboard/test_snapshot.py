"""The hub's status and alerts, read together."""

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.dashboard.snapshot import take_snapshot

HANG = {
    "kind": "hang", "subject_type": "rank", "subject": "5", "severity": "critical", "summary": "It hangs.",
    "evidence": "{}", "confidence": 0.9,
}  # fmt: skip
FLAP = {
    **HANG, "kind": "link_flap", "subject_type": "link", "subject": "n1/mlx5_0/1", "severity": "warning",
    "state": "firing", "job": "gpt",
}  # fmt: skip


def test_findings_of_a_job_and_alerts_about_its_machines(source):
    source.answers["status"]["jobs"][0]["findings"] = [HANG]
    source.answers["alerts"] = [FLAP, {**FLAP, "job": "bert"}]
    seen = take_snapshot(source)
    assert [f["kind"] for f in seen.findings("gpt")] == ["hang", "link_flap"]
    assert seen.findings("nosuch") == []


def test_a_recording_has_the_findings_it_was_judged_by_and_no_alert(source):
    past = {"job": "old", "verdict": {"state": "slow"}, "findings": [HANG]}
    source.answers["status"]["past_jobs"] = [past]
    source.answers["alerts"] = [{**FLAP, "job": "old"}]
    seen = take_snapshot(source)
    assert seen.findings("old") == [HANG]
    assert (seen.live_job("old"), seen.job("old")) == ({}, past)


def test_without_an_answer_about_alerts_there_are_none(source, monkeypatch):
    def alerts():
        raise Unavailable("hub does not answer")

    monkeypatch.setattr(source, "alerts", alerts)
    source.answers["status"]["jobs"][0]["findings"] = [HANG]
    assert take_snapshot(source).findings("gpt") == [HANG]


def test_without_a_status_there_is_no_snapshot(source):
    source.error = Unavailable("hub does not answer")
    with pytest.raises(Unavailable):
        take_snapshot(source)


def test_the_verdict_changes_with_the_state_and_with_who_is_accused(source):
    job = source.answers["status"]["jobs"][0]
    before = take_snapshot(source).verdict("gpt")
    source.answers["status"]["jobs"] = [{**job, "step": 120}]
    assert take_snapshot(source).verdict("gpt") == before
    source.answers["status"]["jobs"] = [{**job, "findings": [HANG]}]
    accused = take_snapshot(source).verdict("gpt")
    source.answers["status"]["jobs"] = [{**job, "verdict": {"state": "healthy"}}]
    assert len({before, accused, take_snapshot(source).verdict("gpt")}) == 3
