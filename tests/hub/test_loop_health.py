"""A loop that stands still or keeps failing is an alert, until it is well again."""

import asyncio

import pytest

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.hub.loop_health import LATE_S, LoopHealth, detector, trouble
from tests.hub.fakes import Clock


def row(**changes):
    fields = {
        "process": "hub", "node": "", "loop": "controller", "turns": 3, "failures": 0, "failures_in_a_row": 0,
        "last_error": "", "age_s": 0.2, "stale": False,
    }  # fmt: skip
    return fields | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"failures": 90, "last_error": "KeyError: 'x'"}, ""),
        ({"failures_in_a_row": 2}, ""),
        ({"failures_in_a_row": 3, "last_error": "KeyError: 'x'"}, "3 turns in a row failed: KeyError: 'x'"),
        ({"stale": True, "age_s": 9.4}, "no turn for 9 s"),
    ],
)
def test_a_loop_is_in_trouble_when_it_is_stale_or_fails_three_times_in_a_row(changes, expected):
    assert trouble(row(**changes)) == expected


def test_the_name_of_an_agents_loop_has_its_node():
    assert detector(row()) == "hub loop controller"
    assert detector(row(process="agent", node="n7", loop="drain")) == "agent n7 loop drain"


@pytest.fixture
def site(tmp_path):
    class Site:
        clock, rows = Clock(), [row()]
        book = AlertBook(tmp_path / "alerts.db")
        health = LoopHealth(lambda: Site.rows, book, clock)

        @staticmethod
        def turn(after_s=1.0):
            Site.clock.now_s += after_s
            asyncio.run(Site.health.turn())
            return [(a["subject"], a["state"]) for a in Site.book.list()]

    yield Site
    Site.book.close()


def test_an_alert_begins_and_ends_with_the_trouble(site):
    assert site.turn() == []
    site.rows = [row(stale=True)]
    assert site.turn() == [("hub loop controller", "error")]
    site.rows = [row()]
    assert site.turn() == [("hub loop controller", "resolved")]


def test_the_alert_of_a_loop_that_has_ended_is_over(site):
    site.rows = [row(loop="job j", stale=True)]
    site.turn()
    site.rows = []
    assert site.turn() == [("hub loop job j", "resolved")]


def test_after_a_pause_of_the_whole_hub_no_loop_is_blamed(site):
    site.rows = [row(stale=True)]
    assert site.turn(after_s=LATE_S + 1) == []
    assert site.turn() == [("hub loop controller", "error")]


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.01, 1.0), (0.1, 1.9), (4.0, 3.0)])
def test_looks_that_take_long_come_seldom_and_never_too_seldom(tmp_path, took_s, wait_s):
    clock, book = Clock(), AlertBook(tmp_path / "alerts.db")

    def rows():
        clock.now_s += took_s
        return [row()]

    assert asyncio.run(LoopHealth(rows, book, clock).turn()) == pytest.approx(wait_s)
    book.close()
