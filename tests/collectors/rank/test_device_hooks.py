"""What waits for other ranks gives the device away, and only where devices are shared."""

import os
import threading

import pytest

from pulsetrain.collectors.rank import device_turns
from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.device_hooks import around, asked, install
from pulsetrain.collectors.rank.device_turns import DeviceTurns, FileLocks
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


def test_a_rank_that_polls_lets_one_that_waits_for_its_device_pass(watched, tmp_path):
    """The other one is a process of its own. What this rank asks for is done once that had the device."""
    file = os.open(tmp_path / "devices", os.O_RDWR | os.O_CREAT)
    turns = DeviceTurns(watched.handle.state, FileLocks(file))
    watched.reader.device.order(0)
    turns.leave()
    turns.enter()
    done, say_done = os.pipe()
    os.set_blocking(done, False)
    other = os.fork()
    if not other:
        FileLocks(file).take(0)
        os.write(say_done, b"d")
        os._exit(0)

    def is_completed() -> bool:
        try:
            return bool(os.read(done, 1))
        except BlockingIOError:
            return False

    poll, limit = asked(turns, is_completed), threading.Event()
    timer = threading.Timer(20, limit.set)
    timer.start()
    while not poll():
        assert not limit.is_set(), "it never had the device"
    timer.cancel()
    os.waitpid(other, 0)
    for fd in (file, done, say_done):
        os.close(fd)
    assert turns.held == 0


@pytest.fixture
def polls(watched) -> DeviceTurns:
    """A rank with a device that has had it for a while. Nothing sleeps."""
    turns = DeviceTurns(watched.handle.state, Locks(), pause=lambda seconds: None)
    watched.reader.device.order(0)
    turns.leave()
    turns.enter()
    turns._taken = 0
    return turns


def gave(turns: DeviceTurns) -> int:
    return turns._locks.seen.count(("give", 0))


def test_a_rank_gives_its_device_away_at_most_once_in_a_millisecond_while_it_polls(polls, monkeypatch):
    now = [5_000_000]
    monkeypatch.setattr(device_turns, "perf_counter_ns", lambda: now[0])
    poll = asked(polls, lambda: False)
    for _ in range(3):
        poll()
    assert gave(polls) == 1
    now[0] += device_turns.POLL_NS
    poll()
    assert (gave(polls), polls.held) == (2, 0)


def test_an_operation_that_is_done_costs_no_device(polls):
    assert asked(polls, lambda: True)()
    assert gave(polls) == 0


def test_what_pulsetrain_itself_asks_gives_no_device_away(polls):
    poll = asked(polls, lambda: False)
    caller = {"__name__": "pulsetrain.collectors.rank.collectives", "poll": poll}
    assert eval("poll()", caller) is False
    assert gave(polls) == 0


def test_a_poll_on_another_thread_gives_no_device_away(polls):
    thread = threading.Thread(target=asked(polls, lambda: False))
    thread.start()
    thread.join()
    assert (gave(polls), polls.held) == (0, 0)


def test_a_rank_that_polls_follows_when_its_device_is_to_be_shared(watched):
    turns = DeviceTurns(watched.handle.state, Locks(), pause=lambda seconds: None)
    poll = asked(turns, lambda: False)
    poll()
    assert turns._locks.seen == []
    watched.reader.device.order(1)
    poll()
    assert turns.held == 1
    watched.reader.device.order(-1)
    turns._taken = 0
    poll()
    assert turns.held == -1
