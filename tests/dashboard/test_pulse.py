"""Whether the hub answers, as every page reads it."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.dashboard.models.overview import job_lines, stale
from pulsetrain.dashboard.pulse import AWAY_S, Pulse
from tests.dashboard.test_source import Clock


class Site:
    def __init__(self):
        self.clock, self.answer, self.threads = Clock(), {"jobs": []}, []
        self.pulse = Pulse(self.ask, clock=self.clock, start=self.start)

    def ask(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def start(self, run):
        self.threads.append(run)
        self.pulse.turn()


def test_the_first_reader_begins_to_ask_and_the_others_share_it():
    site = Site()
    assert [site.pulse.status() for _ in range(3)] == [{"jobs": []}] * 3
    assert len(site.threads) == 1
    assert site.pulse.away == ""


def test_a_hub_that_falls_silent_is_away_within_five_seconds_and_its_last_status_is_kept():
    site = Site()
    site.pulse.status()
    site.clock.now += AWAY_S
    assert site.pulse.status() == {"jobs": []}
    assert site.pulse.away == "The hub does not answer, for 5 s now"
    assert site.pulse.age_s == AWAY_S
    site.pulse.turn()
    assert site.pulse.away == ""


def test_a_fresh_page_learns_that_the_hub_does_not_answer():
    site = Site()
    site.answer = Unavailable("timed out")
    with pytest.raises(Unavailable, match="timed out"):
        site.pulse.status()
    site.clock.now += AWAY_S
    assert site.pulse.away == "Timed out, for 5 s now"


def test_a_hub_that_nobody_looked_at_is_not_away():
    site = Site()
    site.clock.now += 1000.0
    assert site.pulse.away == ""


def test_a_status_from_before_a_pause_is_as_old_as_it_is():
    site = Site()
    site.answer = {"jobs": [{"job": "gpt", "state": "running", "verdict": {"state": "healthy"}}]}
    site.pulse.status()
    site.clock.now += 31.0
    (beat,) = site.threads
    beat()  # it asks once more, and ends as nobody reads
    site.clock.now += 3600.0
    site.answer = Unavailable("timed out")
    lines = job_lines(site.pulse.status()["jobs"], [])
    assert site.pulse.age_s == 3600.0
    assert [line.state for line in stale(lines, site.pulse.age_s)] == ["no_data"]
    assert site.pulse.away == ""
    site.clock.now += AWAY_S
    assert site.pulse.away == "Timed out, for 5 s now"
    site.answer = {"jobs": []}
    site.pulse.turn()
    assert (site.pulse.age_s, site.pulse.away) == (0.0, "")
