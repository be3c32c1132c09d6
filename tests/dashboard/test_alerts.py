"""The page Alerts."""

import time

import pytest

from pulsetrain.core.errors import Unavailable

FIRING = {
    "id": "a1", "state": "firing", "severity": "critical", "kind": "hang", "subject_type": "rank",
    "subject": "5", "job": "gpt", "summary": "<hangs>", "since_ns": 10**18, "count": 3, "acknowledged_by": "",
}  # fmt: skip
SEEN = {**FIRING, "id": "a2", "acknowledged_by": "ann"}


@pytest.fixture
def alerts(source):
    source.answers["alerts"] = [SEEN, FIRING]
    return source


def test_who_needs_a_person_has_buttons_and_the_rest_is_a_table(draw, alerts):
    shown = draw("alerts")
    assert "hang , rank 5: <hangs>" in shown.text
    assert "seen 3 times" in shown.text
    assert [button.key for button in shown.app.button] == ["ack-a1", "silence-a1"]
    assert [row[-1] for row in shown.rows()] == ["ann"]


def test_states_and_kinds_are_words(draw, alerts):
    blind = {**FIRING, "kind": "no_data", "state": "no_data", "subject_type": "job", "subject": "mfu"}
    alerts.answers["alerts"] = [blind, {**blind, "id": "a3", "acknowledged_by": "ann"}]
    shown = draw("alerts")
    assert "no_data" not in shown.text
    assert shown.rows()[0][1:3] == ["no data", "no data"]
    shown.click("silence-a1")
    assert alerts.client.done[0][1]["kind"] == "no_data"


def test_an_alert_of_another_job_names_it(draw, alerts):
    assert "job gpt" not in draw("alerts", job="gpt").text
    assert "hang , job gpt, rank 5: <hangs>" in draw("alerts", job="bert").text


def test_an_alert_is_acknowledged_with_a_note(draw, alerts):
    shown = draw("alerts")
    shown.app.text_input(key="ack_note").set_value("cable")
    shown.click("ack-a1")
    assert alerts.client.done == [("acknowledge", "a1", "cable")]


def test_a_silence_covers_this_alert_for_the_chosen_time(draw, alerts):
    shown = draw("alerts")
    shown.app.selectbox(key="silence_for").set_value("8 hours")
    shown.click("silence-a1")
    matchers = {"job": "gpt", "kind": "hang", "subject_type": "rank", "subject": "5"}
    assert alerts.client.done == [("silence", matchers, 28_800, "")]


def test_a_silence_is_ended(draw, source):
    expires = time.time_ns() + 3600 * 10**9
    silence = {
        "id": "s1",
        "matchers": {"kind": "hang"},
        "author": "ann",
        "comment": "",
        "expires_ns": expires,
    }
    source.answers["silences"] = [silence]
    shown = draw("alerts")
    assert "kind = hang" in shown.text
    shown.click("end-s1")
    assert source.client.done == [("end_silence", "s1")]


def test_what_the_hub_refuses_is_said(draw, alerts):
    alerts.client.refusal = Unavailable("hub is away")
    shown = draw("alerts").click("ack-a1")
    assert "Not acknowledged: hub is away" in shown.text


def test_no_alert_does_not_mean_that_the_job_is_healthy(draw):
    text = draw("alerts").text
    assert "No alert is on record." in text
    assert "healthy" not in text


def test_what_needs_a_person_stays_and_the_rest_is_that_of_the_chosen_time(draw, alerts):
    over = {
        **SEEN,
        "id": "a3",
        "state": "resolved",
        "resolved_ns": 10**18 + 60 * 10**9,
        "acknowledged_by": "bob",
    }
    alerts.answers["alerts"] = [over, FIRING]
    shown = draw("alerts", **{"from": "2001-09-09", "to": "2001-09-10"})
    assert [row[-1] for row in shown.rows()] == ["bob"]
    shown = draw("alerts", **{"from": "2001-09-10", "to": "2001-09-11"})
    assert [button.key for button in shown.app.button] == ["ack-a1", "silence-a1"]
    assert "No other alert is on record in this time." in shown.text
