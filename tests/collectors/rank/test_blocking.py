"""How long a rank's main thread stood still: measured where it waits, and carried by each phase around it."""

from __future__ import annotations

import itertools
import threading

import pytest

from pulsetrain.collectors.rank import blocking, collectives, phases
from pulsetrain.collectors.rank.blocking import Blocking
from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.operations import Group, Operation
from tests.collectors.rank.watched import Watched


class Future:
    def __init__(self, work):
        self.work = work

    def done(self):
        return self.work.complete


class Work:
    def __init__(self):
        self.complete = False

    def is_completed(self):
        return self.complete

    def get_future(self):
        return Future(self)


class Rank:
    """A rank with one group, on a clock that the test moves. Its autograd engine runs when it says so."""

    def __init__(self, monkeypatch, *, host_only=True):
        self.now = 1_000
        for module in (blocking, collectives, phases):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)
        self.watched = Watched()
        self.state = self.watched.handle.state
        self.tracker = Tracker(self.state)
        self.group = Group(self.tracker, "dp", lambda: (0, 1), host_only=host_only)
        self.group._open_cell()
        self.numbers, self.callbacks = itertools.count(1), []
        self.tracker._queue = self.callbacks.append
        self.tracker._graph_task = lambda: 1

    def enqueue(self):
        work, number = Work(), next(self.numbers)
        operation = Operation(self.group, self.state.ring.intern("all_reduce"), number, 8, -1)
        operation.work, operation.start = work, self.now
        self.group.in_flight[number] = operation
        self.tracker.pending[id(work)] = (operation, number)
        return work

    def wait(self, work, took):
        def original(waited):
            self.now += took
            waited.complete = True

        self.tracker.watched_wait(original)(work)

    def blocked(self):
        names = self.watched.reader.names
        return [(names[row["name"]], int(row["blocked"])) for row in self.watched.reader.drain()[0]]


@pytest.fixture
def rank(monkeypatch):
    return Rank(monkeypatch)


def test_every_phase_carries_what_passed_in_waits_inside_it(rank):
    phase = rank.watched.handle.phase
    with phase("backward"):
        rank.now += 100
        with phase("inner"):
            rank.wait(rank.enqueue(), 30)
        rank.wait(rank.enqueue(), 5)
    rank.wait(rank.enqueue(), 1000)
    with phase("forward"):
        rank.now += 7
    assert rank.blocked() == [
        ("all_reduce", 30),
        ("inner", 30),
        ("all_reduce", 5),
        ("backward", 35),
        ("all_reduce", 1000),
        ("forward", 0),
    ]


def test_the_status_page_shows_for_which_group_the_main_thread_waits(rank):
    operation = rank.enqueue() and next(iter(rank.group.in_flight.values()))
    waits = Blocking(rank.state)
    assert waits.begin(operation)
    (shown,) = rank.watched.reader.status().stack
    assert (shown.name, shown.waiting, shown.group) == ("all_reduce", True, "dp")
    waits.end()
    assert rank.watched.reader.status().stack == ()


def test_a_phase_inside_itself_counts_for_each_entry_alone(rank):
    phase = rank.watched.handle.phase
    with phase("forward"):
        rank.wait(rank.enqueue(), 3)
        with phase("forward"):
            rank.wait(rank.enqueue(), 20)
    assert [b for name, b in rank.blocked() if name == "forward"] == [20, 23]


def test_an_operation_that_ends_while_the_rank_works_blocks_nobody(rank):
    with rank.watched.handle.phase("backward"):
        work = rank.enqueue()
        rank.now += 50
        work.complete = True
    assert rank.blocked() == [("backward", 0), ("all_reduce", 0)]


def test_a_phase_of_the_scripts_own_communication_is_time_stood_still(rank):
    phase = rank.watched.handle.phase
    with phase("backward"):
        rank.now += 10
        with phase("all_reduce"):
            rank.wait(rank.enqueue(), 30)
            rank.now += 5
    assert rank.blocked() == [("all_reduce", 30), ("all_reduce", 35), ("backward", 35)]


def test_a_wait_of_another_thread_is_not_the_main_threads(rank):
    work = rank.enqueue()
    with rank.watched.handle.phase("backward"):
        thread = threading.Thread(target=lambda: rank.wait(work, 30))
        thread.start()
        thread.join()
    assert sorted(rank.blocked()) == [("all_reduce", 0), ("backward", 0)]


def test_a_wait_inside_a_wait_counts_once(rank):
    outer, inner = rank.enqueue(), rank.enqueue()

    def original(_):
        rank.now += 4
        rank.wait(inner, 6)

    with rank.watched.handle.phase("backward"):
        rank.tracker.watched_wait(original)(outer)
    assert rank.blocked()[-1] == ("backward", 10)


def test_what_a_device_waits_for_is_not_known_to_the_host(monkeypatch):
    rank = Rank(monkeypatch, host_only=False)
    with rank.watched.handle.phase("backward"):
        rank.wait(rank.enqueue(), 30)
    assert rank.blocked() == [("all_reduce", -1), ("backward", 0)]


def backward(rank, works, *, until_reducer, reducer):
    """A backward pass: buckets, more work, then the callbacks with the reducer's own among them."""
    for work in works:
        rank.tracker.pending[id(work)][0].work = work
        rank.tracker.poll_after_backward()
    rank.now += until_reducer
    rank.callbacks.pop(0)()  # ours, queued at the first bucket
    rank.now += reducer
    for work in works:
        work.complete = True
    while rank.callbacks:
        rank.callbacks.pop(0)()


def test_the_reducers_wait_for_its_last_bucket_is_the_ranks(rank):
    with rank.watched.handle.phase("backward"):
        works = [rank.enqueue(), rank.enqueue()]
        works[0].complete = True
        backward(rank, works, until_reducer=100, reducer=40)
    assert rank.blocked() == [("all_reduce", 0), ("all_reduce", 40), ("backward", 40)]
    assert rank.watched.open() == []
    assert rank.watched.errors == 0


def test_a_reducer_that_finds_all_buckets_done_waits_for_nobody(rank):
    with rank.watched.handle.phase("backward"):
        work = rank.enqueue()
        work.complete = True
        backward(rank, [work], until_reducer=100, reducer=40)
    assert rank.blocked() == [("all_reduce", 0), ("backward", 0)]


def test_a_backward_pass_that_failed_leaves_no_wait_open(rank):
    rank.enqueue()
    rank.tracker.poll_after_backward()
    rank.callbacks.pop(0)()
    rank.callbacks.clear()  # the engine raised
    assert rank.watched.open() == ["all_reduce"]
    rank.tracker._graph_task = lambda: 2
    with rank.watched.handle.phase("backward"):
        backward(rank, [rank.enqueue()], until_reducer=1, reducer=9)
    assert ("backward", 9) in rank.blocked()
    assert rank.watched.open() == []


def test_a_call_that_waits_in_cpp_counts_as_far_as_it_enqueued_something(rank):
    def broadcast():
        rank.enqueue().complete = True
        rank.now += 25

    with rank.watched.handle.phase("forward"):
        rank.tracker.watched_call(broadcast)()
        rank.tracker.watched_call(lambda: setattr(rank, "now", rank.now + 100))()
    assert rank.blocked() == [("all_reduce", 25), ("forward", 25)]
