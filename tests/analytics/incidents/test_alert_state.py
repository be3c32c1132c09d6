"""The life of one alert: each transition, and what it leaves as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.incidents.alert_state import (
    AlertConfig,
    after_detector_loss,
    after_finding,
    after_time,
    detectors,
    fingerprint,
    resolved,
)
from pulsetrain.analytics.verdict import Failed, Inconclusive
from tests.analytics.incidents.findings import T0, S, alert, finding

CONFIG = AlertConfig()
BLIND = Inconclusive(analyzer="mfu", reason="no steps", blind=True)


def test_a_config_with_a_negative_time_names_it():
    with pytest.raises(ValueError, match="resolve_after_s"):
        AlertConfig(resolve_after_s=-1)


def test_the_same_finding_twice_changes_only_when_it_was_seen():
    once = after_finding(None, finding(), T0, CONFIG)
    twice = after_finding(once, finding(), T0 + 30 * S, CONFIG)
    assert twice == replace(once, last_seen_ns=T0 + 30 * S)


@pytest.mark.parametrize(("gap_s", "count"), [(5, 1), (10, 2)])
def test_a_new_finding_after_a_pause_is_another_occurrence(gap_s, count):
    later = T0 + gap_s * S
    assert after_finding(alert(), finding(at=later), later, CONFIG).count == count


@given(st.lists(st.sampled_from(["info", "warning", "critical"]), min_size=1, max_size=6))
def test_the_severity_is_the_worst_that_was_reported(severities):
    order = ("info", "warning", "critical")
    current = None
    for i, severity in enumerate(severities):
        current = after_finding(current, finding(severity=severity, at=T0 + i), T0 + i, CONFIG)
    assert current.severity == max(severities, key=order.index)


def test_a_resolved_alert_comes_back_as_a_new_occurrence_with_the_old_id():
    over = resolved(alert(acknowledged_by="ann"), T0 + S)
    back = after_finding(over, finding(at=T0 + 9 * S), T0 + 9 * S, CONFIG)
    assert (back.id, back.state, back.count, back.since_ns) == (over.id, "firing", 2, T0 + 9 * S)
    assert back.acknowledged_by == ""


def test_a_finding_from_before_the_end_does_not_bring_an_alert_back():
    over = resolved(alert(), T0 + S)
    assert after_finding(over, finding(), T0 + 2 * S, CONFIG) is over


@pytest.mark.parametrize(("after_s", "state"), [(9, "pending"), (10, "firing")])
def test_a_pending_alert_fires_when_it_has_lasted(after_s, state):
    config = AlertConfig(pending_s=10)
    assert after_time(alert(config=config), T0 + after_s * S, config, blind=False).state == state


@pytest.mark.parametrize(("blind", "state"), [(False, "resolved"), (True, "no_data")])
def test_an_absent_alert_resolves_only_where_its_detector_sees(blind, state):
    assert after_time(alert(), T0 + 300 * S, CONFIG, blind=blind).state == state


def test_an_alert_without_data_fires_again_when_its_detector_sees():
    unknown = alert(state="no_data", last_seen_ns=T0 + 299 * S)
    assert after_time(unknown, T0 + 301 * S, CONFIG, blind=False).state == "firing"


def test_a_resolved_alert_stays_so():
    over = resolved(alert(), T0)
    assert after_time(over, T0 + 10**6 * S, CONFIG, blind=True) is over
    assert resolved(over, T0 + S) is over


def test_a_blind_detector_is_no_data_and_a_failed_one_an_error():
    blind = after_detector_loss(BLIND, "j", None, T0)
    failed = after_detector_loss(Failed(analyzer="mfu", error="ValueError: x"), "j", blind, T0 + S)
    assert (blind.state, blind.severity, blind.summary) == ("no_data", "info", "mfu sees no data: no steps")
    assert (failed.id, failed.state, failed.changed_ns) == (blind.id, "error", T0 + S)
    assert failed.summary == "mfu failed: ValueError: x"


def test_a_detector_that_stays_blind_has_not_changed():
    blind = after_detector_loss(BLIND, "j", None, T0)
    assert after_detector_loss(BLIND, "j", blind, T0 + S).changed_ns == T0


def test_a_detector_that_is_blind_again_is_counted():
    over = resolved(after_detector_loss(BLIND, "j", None, T0), T0 + S)
    assert after_detector_loss(BLIND, "j", over, T0 + 2 * S).count == 2


def test_subjects_have_ids_of_their_own():
    ids = {
        fingerprint(*parts) for parts in (("a", "b", "c", "d"), ("ab", "", "c", "d"), ("a", "b", "cd", ""))
    }
    assert len(ids) == 3


def test_a_kind_without_an_entry_is_found_by_the_analyzer_of_its_name():
    assert detectors("hang") == ("hang",)
    assert set(detectors("gpu_fault")) == {"kernel_log", "gpu_health"}


def test_a_row_says_when_an_alert_ended_and_why_it_is_muted():
    assert alert().row("silenced")["muted"] == "silenced"
    assert alert().row()["resolved_ns"] is None
    assert resolved(alert(), T0 + S).row()["resolved_ns"] == T0 + S
