"""What checks named stays open until something says that it is over."""

import asyncio

import pytest

from pulsetrain.hub.check_watch import SOURCE, CheckWatch
from pulsetrain.recovery.arithmetic_suspicion import WrongArithmetic
from tests.hub.fakes import FakeJob, Sink
from tests.hub.test_link_findings import PORT, outcome
from tests.recovery.builders import S


@pytest.fixture
def site():
    class Site:
        sink, job = Sink(), FakeJob()

        def __init__(self):
            self.watch = CheckWatch({"j": self.job}, self.sink)

        def look(self, **changes):
            self.job.changes |= changes
            asyncio.run(self.watch.turn())
            return self.sink.still_open.get(("j", SOURCE), [])

    return Site()


def test_without_a_check_nothing_is_reported(site):
    assert site.look() == []
    assert site.sink.still_open == {}


def test_a_finding_is_new_once_and_stays_open_over_a_restart_of_the_job(site):
    site.look(links=outcome(PORT))
    for _ in range(20):
        site.look()
    assert len(site.sink.new) == 1
    assert [f.attempt for f in site.look(attempt=1)] == [1]


def test_it_ends_with_a_check_that_finds_the_link_good(site):
    site.look(links=outcome(PORT))
    assert site.look(links=outcome(at_ns=995 * S)) == []


def test_links_and_arithmetic_are_reported_together(site):
    wrong = {"a": WrongArithmetic(reason="x", at_ns=5)}
    found = site.look(links=outcome(PORT), wrong_arithmetic=wrong)
    assert {f.kind for f in found} == {"bad_link", "wrong_arithmetic"}
    assert [f.kind for f in site.look(wrong_arithmetic={})] == ["bad_link"]


def test_a_job_that_is_forgotten_and_comes_again_is_told_anew(site):
    site.look(links=outcome(PORT))
    site.watch.forget("j")
    assert site.watch._dedup == {}
    site.look()
    assert len(site.sink.new) == 2
