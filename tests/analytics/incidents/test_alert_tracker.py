"""The alerts of a hub, and how verdicts and time change them."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alert_store import AlertStore
from pulsetrain.analytics.incidents.alert_tracker import AlertTracker
from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive, not_known_now
from pulsetrain.core.errors import UsageError
from tests.analytics.incidents.findings import T0, S, finding

BLIND = Inconclusive(analyzer="straggler", reason="no steps", blind=True)


@pytest.fixture
def store(tmp_path):
    opened = AlertStore(tmp_path / "alerts.db")
    yield opened
    opened.close()


@pytest.fixture
def tracker(store):
    return AlertTracker(store, AlertConfig(resolve_after_s=100, history_s=1000))


def states(tracker):
    return {(a.kind, a.subject): a.state for a in tracker.all()}


def test_a_change_is_saved_with_its_history(tracker, store):
    tracker.observe(finding(), "", T0)
    (alert,) = tracker.all()
    assert store.alerts() == {alert.id: alert}
    assert [c["state"] for c in store.history(alert.id)] == ["firing"]


def test_a_change_of_no_state_is_saved_without_history(tracker, store):
    tracker.observe(finding(), "", T0)
    tracker.observe(finding(), "", T0 + S)
    (alert,) = store.alerts().values()
    assert alert.last_seen_ns == T0 + S
    assert len(store.history(alert.id)) == 1


def test_an_abstaining_detector_is_no_alert(tracker):
    tracker.observe(Inconclusive(analyzer="mfu", reason="too few steps"), "j", T0)
    assert states(tracker) == {}


@pytest.mark.parametrize("back", [Healthy(analyzer="straggler"), finding("straggler")])
def test_a_detector_is_back_when_it_is_healthy_or_finds_something(tracker, back):
    tracker.observe(BLIND, "j", T0)
    tracker.observe(back, "j", T0 + S)
    assert states(tracker)["no_data", "straggler"] == "resolved"


def test_one_of_two_detectors_of_a_kind_is_not_back_because_a_finding_came(tracker):
    tracker.observe(Failed(analyzer="network", error="x"), "j", T0)
    tracker.observe(finding("link_flap", "link", "a/mlx5_0"), "j", T0 + S)
    assert states(tracker)["no_data", "network"] == "error"


def test_an_alert_is_held_while_its_detector_is_blind_also_over_a_restart(tracker, store):
    tracker.observe(finding("straggler"), "", T0)
    tracker.observe(BLIND, "j", T0 + S)
    again = AlertTracker(store, AlertConfig(resolve_after_s=100))
    again.observe(BLIND, "j", T0 + 99 * S)
    again.age(T0 + 100 * S)
    assert states(again)["straggler", "3"] == "no_data"


def test_an_alert_ends_once_its_detector_sees_data_again_that_decides_nothing(tracker):
    tracker.observe(finding("straggler"), "", T0)
    tracker.observe(BLIND, "j", T0 + S)
    tracker.observe(Inconclusive(analyzer="straggler", reason="too few steps"), "j", T0 + 50 * S)
    tracker.age(T0 + 100 * S)
    assert states(tracker)["straggler", "3"] == "resolved"


def test_an_alert_is_held_where_its_detector_cannot_tell_for_as_long_as_it_was_seen(tracker):
    """What is open and not known does not renew it, nor is its detector back."""
    seen, held = finding("straggler"), not_known_now(finding("straggler"), "too few steps")
    told = {}
    for second in range(0, 500, 10):
        unsure = Inconclusive(analyzer="straggler", reason="too few steps")
        for verdict in [seen] if second <= 200 else [unsure, held]:
            tracker.observe(verdict, "j", T0 + second * S)
        tracker.age(T0 + second * S)
        told.setdefault(states(tracker)["straggler", "3"], second)
    assert told == {"firing": 0, "no_data": 300, "resolved": 410}


def test_a_finding_that_is_not_known_now_does_not_mend_a_detector_that_failed(tracker):
    tracker.observe(finding("straggler"), "", T0)
    tracker.observe(Failed(analyzer="straggler", error="x"), "j", T0 + S)
    tracker.observe(not_known_now(finding("straggler"), "x"), "j", T0 + S)
    assert states(tracker)["no_data", "straggler"] == "error"


def test_an_alert_that_its_detector_could_not_tell_of_ends_with_the_job(tracker):
    for second in range(0, 1000, 10):
        tracker.observe(finding("straggler"), "", T0 + second * S)
    tracker.observe(Inconclusive(analyzer="straggler", reason="too few steps"), "j", T0 + 1000 * S)
    for second in range(1000, 1310, 10):
        tracker.age(T0 + second * S)
    assert states(tracker)["straggler", "3"] == "resolved"


def test_an_alert_ends_with_its_job_also_where_its_detector_was_blind(tracker):
    tracker.observe(finding("straggler"), "", T0)
    tracker.observe(BLIND, "j", T0 + 50 * S)
    tracker.age(T0 + 149 * S)  # of a job that is over no detector says anything
    assert states(tracker) == {("straggler", "3"): "no_data", ("no_data", "straggler"): "no_data"}
    for after_s in (150, 151):
        tracker.age(T0 + after_s * S)
    assert states(tracker) == {("straggler", "3"): "resolved", ("no_data", "straggler"): "resolved"}


def test_a_resolved_alert_is_forgotten_after_its_time(tracker, store):
    tracker.observe(finding(), "", T0)
    tracker.age(T0 + 100 * S)
    tracker.age(T0 + 1100 * S)
    assert states(tracker) == {("hang", "3"): "resolved"}
    tracker.age(T0 + 1101 * S)
    assert states(tracker) == {}
    assert store.alerts() == {}


def test_time_goes_on_where_the_clock_steps_back_also_over_a_restart(tracker, store):
    assert tracker.forward(T0) == T0
    tracker.observe(finding(), "", T0)
    for opened in (tracker, AlertTracker(store, AlertConfig())):
        assert [opened.forward(T0 + s * S) for s in (-100, -97)] == [T0, T0 + 3 * S]
    assert tracker.forward(T0 + 60 * S) == T0 + 60 * S  # the clock is right again
    assert tracker.forward(T0 + 61 * S) == T0 + 61 * S


def test_calls_that_tell_a_slightly_older_time_do_not_hurry_the_time(tracker):
    for second in range(100):
        assert tracker.forward(T0 + second * S) == T0 + second * S
        assert tracker.forward(T0 + (second - 1) * S) == T0 + second * S


def test_an_alert_is_found_by_the_beginning_of_its_id(tracker):
    tracker.observe(finding(), "", T0)
    (alert,) = tracker.all()
    assert tracker.find(alert.id[:4]) == alert
    for unknown in ("", "x"):
        with pytest.raises(KeyError):
            tracker.find(unknown)


def test_a_beginning_that_several_ids_share_is_refused(tracker):
    for rank in range(17):  # an id has 16 possible first characters
        tracker.observe(finding(subject=str(rank)), "", T0)
    first = [a.id[0] for a in tracker.all()]
    shared = next(c for c in first if first.count(c) > 1)
    with pytest.raises(UsageError, match="is the beginning of"):
        tracker.find(shared)
