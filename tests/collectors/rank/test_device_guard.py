"""A rank that stands still with a shared device gives it away."""

import threading

from pulsetrain.collectors.rank.device_guard import DeviceGuard
from pulsetrain.collectors.rank.device_turns import DeviceTurns
from tests.collectors.rank.test_device_turns import Locks


class Process:
    """A rank with a device, its clock and its processor time."""

    def __init__(self, watched) -> None:
        self.now_s, self.used_s, self.locks = 100.0, 7.0, Locks()
        self.turns = DeviceTurns(watched.handle.state, self.locks)
        self.guard = DeviceGuard(self.turns, clock=lambda: self.now_s, used=lambda: self.used_s)
        watched.reader.device.order(0)
        self.turn()

    def turn(self) -> None:
        self.turns.leave()
        self.turns.enter()

    def passes(self, seconds: float, *, works: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now_s, self.used_s = self.now_s + 0.1, self.used_s + 0.1 * works
            self.guard.look()


def test_a_rank_that_works_keeps_its_device(watched):
    process = Process(watched)
    process.passes(10.0, works=1.0)
    assert process.turns.held == 0


def test_a_rank_that_stands_still_gives_it_away_after_a_second(watched):
    process = Process(watched)
    process.passes(0.9, works=0.0)
    assert process.turns.held == 0
    process.passes(0.5, works=0.0)
    assert process.turns.held == -1
    assert process.locks.seen[-1] == ("give", 0)
    assert watched.reader.device.use().lent == 1


def test_a_new_turn_is_watched_from_its_begin(watched):
    process = Process(watched)
    process.passes(0.9, works=0.0)
    process.turn()
    process.passes(0.9, works=0.0)
    assert process.turns.held == 0


def test_its_next_wait_ends_with_a_turn_again(watched):
    process = Process(watched)
    process.passes(2.0, works=0.0)
    process.turn()
    assert process.turns.held == 0
    assert process.locks.seen.count(("give", 0)) == 1


def test_another_busy_thread_is_no_work_of_the_rank(watched):
    guard = DeviceGuard(DeviceTurns(watched.handle.state, Locks()))
    before = guard._used()
    worker = threading.Thread(target=lambda: sum(range(3_000_000)))
    worker.start()
    worker.join()
    assert guard._used() - before < 0.02
