"""What waits for other ranks gives the device away, and only where devices are shared."""

import pytest

from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.device_hooks import around, install
from pulsetrain.collectors.rank.device_turns import DeviceTurns
from tests.collectors.rank.test_device_turns import Locks


@pytest.fixture
def turns(watched) -> DeviceTurns:
    return DeviceTurns(watched.handle.state, Locks())


def test_a_wait_gives_the_device_away_and_takes_it_again(turns, watched):
    watched.reader.device.order(0)
    turns.leave()
    turns.enter()
    held = []

    def wait(value: int, *, more: int) -> int:
        held.append(turns.held)
        return value + more

    assert around(turns, wait)(2, more=3) == 5
    assert held == [-1]
    assert turns.held == 0


def test_a_wait_that_fails_ends_with_the_device_all_the_same(turns, watched):
    watched.reader.device.order(0)

    def fails() -> None:
        raise RuntimeError("peer is gone")

    with pytest.raises(RuntimeError, match="peer is gone"):
        around(turns, fails)()
    assert turns.held == 0


@pytest.mark.parametrize("wait", ["watched_wait", "watched_wait_for_any", "watched_call"])
def test_the_hooks_of_collectives_do_so_around_their_own_waits(turns, watched, wait):
    watched.handle.state.turns = turns
    watched.reader.device.order(0)
    turns.leave()
    turns.enter()
    held = []

    def fails(work: object) -> None:
        held.append(turns.held)
        raise RuntimeError("peer is gone")

    with pytest.raises(RuntimeError, match="peer is gone"):
        getattr(Tracker(watched.handle.state), wait)(fails)(object())
    assert held == [-1]
    assert turns.held == 0


def test_nothing_is_locked_where_no_device_is_shared(turns, watched):
    around(turns, lambda: None)()
    assert turns._locks.seen == []
    assert watched.reader.device.use().turns == 0


def test_without_an_agent_nothing_is_hooked(watched, monkeypatch):
    monkeypatch.delenv("PULSETRAIN_DEVICES_FD", raising=False)
    install(watched.handle)
    assert watched.handle.state.turns is None
