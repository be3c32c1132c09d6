"""An ingest that fell behind says so, how far it has come, and when it has caught up."""

from __future__ import annotations

import contextlib

import pytest
from structlog.testing import capture_logs

from pulsetrain.core.progress import LINE_S
from pulsetrain.stream.kafka.catch_up import BEHIND_S, CAUGHT_UP_S, CatchUp
from pulsetrain.stream.kafka.ingest import Backlog
from tests.stream.fakes import StillClock


class Shown:
    """A bar that keeps what it was told. `open` while it is drawn."""

    def __init__(self):
        self.reports, self.open = [], False

    @contextlib.contextmanager
    def __call__(self):
        self.open = True
        yield lambda done, total=None: self.reports.append((done, total))
        self.open = False


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def clock():
    return StillClock()


def looks(catch_up, *backlogs):
    """Backlogs of (stored, waiting) messages. One that has come down to 0 is young."""
    for stored, waiting in backlogs:
        age_s = 60.0 if waiting else 0.0
        catch_up.look(Backlog(stored=stored, waiting=waiting, age_s=age_s))


def test_messages_that_wait_for_a_moment_are_no_backlog(shown, clock):
    with CatchUp(clock, shown) as catch_up, capture_logs() as logs:
        catch_up.look(Backlog(stored=10, waiting=10_000, age_s=BEHIND_S - 1))
    assert (shown.reports, logs) == ([], [])


def test_it_has_caught_up_when_what_waits_is_young(shown, clock):
    with CatchUp(clock, shown) as catch_up:
        catch_up.look(Backlog(stored=0, waiting=100, age_s=BEHIND_S))
        catch_up.look(Backlog(stored=50, waiting=100, age_s=CAUGHT_UP_S))
        assert shown.open
        catch_up.look(Backlog(stored=90, waiting=100, age_s=CAUGHT_UP_S - 1))
        assert not shown.open


def test_how_far_it_has_come_since_it_fell_behind(shown, clock):
    with CatchUp(clock, shown) as catch_up, capture_logs() as logs:
        looks(catch_up, (70, 1000), (170, 1100))
        assert shown.open
        clock.now_s += 3
        looks(catch_up, (1170, 0))
        assert not shown.open
    assert shown.reports == [(0, 1000), (100, 1200)]
    assert [(entry["event"], entry.get("stored")) for entry in logs] == [
        ("ingest_behind", None), ("ingest_caught_up", 1100),
    ]  # fmt: skip
    assert logs[-1]["seconds"] == 3.0


def test_a_line_is_logged_now_and_then(shown, clock):
    with CatchUp(clock, shown) as catch_up, capture_logs() as logs:
        looks(catch_up, (0, 1000))
        for stored in range(1, 41):
            clock.now_s += LINE_S / 20
            looks(catch_up, (stored, 1000))
    assert [entry["event"] for entry in logs] == ["ingest_behind", *["ingest_catching_up"] * 2]


def test_it_may_fall_behind_again(shown, clock):
    with CatchUp(clock, shown) as catch_up:
        looks(catch_up, (0, 1000), (1000, 0), (1000, 2000), (1500, 1500))
    assert shown.reports == [(0, 1000), (0, 2000), (500, 2000)]


def test_a_member_that_begins_anew_begins_to_count_anew(shown, clock):
    with CatchUp(clock, shown) as catch_up, capture_logs() as logs:
        looks(catch_up, (900, 1000), (0, 1000), (0, 1000), (200, 800))
    assert shown.reports == [(0, 1000), (0, 1000), (200, 1000)]
    assert "ingest_caught_up" not in {entry["event"] for entry in logs}


def test_the_bar_is_gone_at_the_end(shown, clock):
    with CatchUp(clock, shown) as catch_up:
        looks(catch_up, (0, 1000))
    assert not shown.open
