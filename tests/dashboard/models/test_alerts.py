"""Alerts: their order, who they are about, and how often they were seen."""

import pytest

from pulsetrain.dashboard.models.alerts import (
    about,
    moment_ns,
    open_alerts,
    ordered_alerts,
    silence_of,
    times,
)


def alert(name, severity="warning", state="firing", by="", since_ns=1):
    return {"id": name, "severity": severity, "state": state, "acknowledged_by": by, "since_ns": since_ns}


def test_alerts_that_need_a_person_come_first():
    alerts = [
        alert("gone", "critical", "resolved"), alert("seen", "critical", by="ann"),
        alert("old", since_ns=10**18),
        alert("new", since_ns=2 * 10**18), alert("bad", "critical"),
    ]  # fmt: skip
    assert [a["id"] for a in ordered_alerts(alerts)] == ["bad", "new", "old", "seen", "gone"]
    assert open_alerts(alerts) == 3
    assert open_alerts([alert("note", "info")]) == 0


def test_an_acknowledged_critical_alert_stays_above_information():
    alerts = [alert("blind", "info", "no_data"), alert("hang", "critical", by="ann")]
    assert [a["id"] for a in ordered_alerts(alerts)] == ["hang", "blind"]


def test_an_alert_says_what_it_is_about():
    assert about({"subject_type": "rank", "subject": "5"}) == "rank 5"
    assert about({"subject_type": "node", "subject": "node-2"}) == "node-2"
    assert about({"subject_type": "job", "subject": "gpt"}) == about({"subject": "gpt"}) == "gpt"
    assert (times(None), times(1), times(1200)) == ("once", "once", "1,200 times")


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (1_700_000_000_000_000_000, 1_700_000_000_000_000_000),
        (1_700_000_000.5, 1_700_000_000_500_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000_000_000),
        (None, 0),
        ("soon", 0),
    ],
)
def test_moments_of_any_form(value, ns):
    assert moment_ns(value) == ns


def test_a_silenced_alert_needs_nobody_and_its_matchers_are_its_own():
    muted = {**alert("a"), "muted": "silenced by ann"}
    assert open_alerts([muted]) == 0
    assert [a["id"] for a in ordered_alerts([muted, alert("b")])] == ["b", "a"]
    assert silence_of({"job": "", "kind": "hang", "subject": "5"}) == {"kind": "hang", "subject": "5"}
