"""What a terminal asks a hub."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.terminal.hub_answers import INCIDENTS_S, HubQuestions, KeptAnswers
from tests.terminal.answers import HANG, INCIDENT, alert, job, status


class Hub:
    """Counts what it is asked."""

    def __init__(self, *jobs):
        self.jobs, self.asked = jobs, []

    def status(self):
        self.asked.append("status")
        return status(*self.jobs)

    def alerts(self):
        self.asked.append("alerts")
        return [alert()]

    def incidents(self):
        self.asked.append("incidents")
        return [INCIDENT]


def test_a_healthy_hub_is_not_asked_for_incidents():
    hub = Hub(job())
    answer = HubQuestions(hub)()
    assert hub.asked == ["status", "alerts"]
    assert (answer["incidents"], len(answer["alerts"])) == ([], 1)


def test_incidents_are_asked_for_when_the_findings_change_and_now_and_then():
    now_s, hub = [0.0], Hub(job(findings=[HANG]))
    ask = HubQuestions(hub, clock=lambda: now_s[0])
    assert ask()["incidents"] == ask()["incidents"] == [INCIDENT]
    assert hub.asked.count("incidents") == 1
    hub.jobs = (job(findings=[HANG | {"subject": "4"}]),)
    ask()
    assert hub.asked.count("incidents") == 2
    now_s[0] = INCIDENTS_S
    ask()
    assert hub.asked.count("incidents") == 3
    hub.jobs = (job(),)
    assert ask()["incidents"] == []


def test_information_asks_for_nothing():
    hub = Hub(job(findings=[HANG | {"severity": "info"}]))
    HubQuestions(hub)()
    assert "incidents" not in hub.asked


def test_the_first_answer_is_kept_while_the_hub_does_not_answer():
    def silent():
        raise Unavailable("away")

    first = {"status": status(job()), "alerts": [], "incidents": []}
    answers = KeptAnswers(silent, first)()
    assert answers.status == first["status"]
    assert answers.age_s == pytest.approx(0, abs=1)
