"""When people are notified, and of which alerts together."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.incidents.alert_state import AlertConfig, resolved
from pulsetrain.analytics.incidents.notifications import batches, due, notified, retry_wait_s
from tests.analytics.incidents.findings import T0, S, alert

CONFIG = AlertConfig(group_wait_s=2, group_interval_s=60, repeat_interval_s=1000)
NOBODY: frozenset[str] = frozenset()


def sent(*alerts, at=T0 + 2 * S, muted=NOBODY):
    return [a.subject for a in due(alerts, muted, at, CONFIG)]


def test_a_new_alert_waits_for_others_of_its_group():
    first, second = alert(subject="1"), alert(subject="2", changed_ns=T0 + S)
    assert sent(first, second, at=T0 + S) == []
    assert sent(first, second) == ["1", "2"]


@pytest.mark.parametrize(("after_s", "subjects"), [(30, []), (62, ["2"])])
def test_a_joiner_waits_for_the_interval_of_its_group(after_s, subjects):
    known = notified(alert(subject="1"), T0 + 2 * S)
    joiner = alert(subject="2", changed_ns=T0 + 5 * S)
    assert sent(known, joiner, at=T0 + after_s * S) == subjects


@pytest.mark.parametrize(("fields", "again"), [({}, True), ({"acknowledged_by": "ann"}, False)])
def test_a_firing_alert_is_repeated_until_somebody_acknowledges_it(fields, again):
    known = notified(alert(**fields), T0)
    assert sent(known, at=T0 + 999 * S) == []
    assert bool(sent(known, at=T0 + 1000 * S)) is again


def test_an_end_is_sent_only_where_the_begin_was():
    begun = resolved(notified(alert(), T0), T0 + S)
    assert sent(begun, at=T0 + 90 * S) == ["3"]
    assert sent(resolved(alert(), T0 + S), at=T0 + 90 * S) == []
    assert sent(notified(begun, T0 + 2 * S), at=T0 + 90 * S) == []


def test_an_alert_that_got_worse_is_sent_again():
    known = notified(alert(severity="warning"), T0)
    worse = alert(severity="critical", notified=known.notified, notified_ns=T0, notified_severity="warning")
    assert sent(worse, at=T0 + 60 * S) == ["3"]


@pytest.mark.parametrize(
    ("before", "now", "is_sent"),
    [("warning", "critical", True), ("warning", "warning", False), ("critical", "warning", False)],
)
def test_an_acknowledged_alert_is_sent_again_where_it_got_worse(before, now, is_sent):
    told = {"notified": "firing", "notified_ns": T0, "notified_severity": before}
    known = alert(severity=now, acknowledged_by="ann", **told)
    assert bool(sent(known, at=T0 + 60 * S)) is is_sent
    assert sent(notified(known, T0 + 60 * S), at=T0 + 5000 * S) == []


@pytest.mark.parametrize(("before", "is_sent"), [("warning", True), ("critical", False)])
def test_who_acknowledged_an_alert_before_anybody_was_told_hears_that_it_got_worse(before, is_sent):
    known = alert(severity="critical", acknowledged_by="ann", acknowledged_severity=before)
    assert bool(sent(known, at=T0 + 60 * S)) is is_sent


@pytest.mark.parametrize(
    ("state", "kind", "is_sent"), [("pending", "hang", False), ("no_data", "no_data", True)]
)
def test_a_pending_alert_is_not_sent_and_a_blind_detector_is(state, kind, is_sent):
    assert bool(sent(alert(kind, state=state))) is is_sent


def test_a_muted_alert_is_not_sent():
    assert sent(alert(), muted=frozenset({alert().id})) == []


def test_begins_and_ends_of_a_group_are_messages_of_their_own():
    over = resolved(notified(alert(subject="1"), T0 - 90 * S), T0)
    begun = [alert(subject="2", since_ns=T0 + 1), alert(subject="3")]
    made = batches([over, *begun, alert("nan")], NOBODY, T0 + 2 * S, CONFIG)
    assert [(b.group, b.status, [a.subject for a in b.alerts]) for b in made] == [
        (("j", "hang"), "firing", ["3", "2"]),
        (("j", "hang"), "resolved", ["1"]),
        (("j", "nan"), "firing", ["3"]),
    ]


def test_the_wait_after_failures_doubles_up_to_ten_minutes():
    waits = [retry_wait_s(n, AlertConfig(retry_s=5)) for n in range(12)]
    assert waits[:3] == [5, 10, 20]
    assert waits == sorted(waits)
    assert waits[-1] == 600
