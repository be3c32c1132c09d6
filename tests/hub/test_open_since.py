"""Since when a finding has been open."""

from pulsetrain.hub.open_since import RECALL_S, OpenSince
from tests.hub.fakes import Clock, finding
from tests.recovery.builders import S


def test_a_finding_that_lasts_keeps_its_beginning():
    since = OpenSince(Clock())
    since.note("j", "live", [finding(ts_ns=100 * S)])
    later = finding(ts_ns=280 * S)
    since.note("j", "live", [later])
    assert since.of("j", later) == 100 * S


def test_a_hang_began_when_the_silence_did():
    hang = finding(ts_ns=100 * S, evidence={"stall_ns": 30 * S})
    since = OpenSince(Clock())
    since.note("j", "live", [hang])
    assert since.of("j", hang) == 70 * S


def test_what_ended_begins_anew():
    since = OpenSince(Clock())
    since.note("j", "live", [finding(ts_ns=100 * S)])
    since.note("j", "live", [])
    again = finding(ts_ns=900 * S)
    since.note("j", "live", [again])
    assert since.of("j", again) == 900 * S


def test_a_restart_of_the_hub_does_not_change_the_beginning():
    since = OpenSince(Clock())
    since.recall([finding(ts_ns=400 * S), finding(ts_ns=100 * S)])
    again = finding(ts_ns=990 * S)
    assert since.goes_on("j", again)
    since.note("j", "live", [again])
    assert since.of("j", again) == 400 * S
    assert not since.goes_on("j", finding(subject="4"))


def test_what_rose_from_information_began_when_it_was_information():
    since = OpenSince(Clock())
    since.recall([finding(ts_ns=500 * S), finding(ts_ns=400 * S, severity="info")])
    since.note("j", "live", [finding(ts_ns=990 * S)])
    assert since.of("j", finding()) == 400 * S


def test_long_after_the_restart_it_is_another_finding():
    clock = Clock()
    since = OpenSince(clock)
    since.recall([finding(ts_ns=400 * S)])
    clock.now_s += RECALL_S
    assert not since.goes_on("j", finding())
