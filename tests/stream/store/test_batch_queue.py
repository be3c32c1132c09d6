"""A batch waits for others of its record, not longer than it may."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.stream.store.batch_queue import BatchQueue, IntakeConfig
from tests.stream.fakes import StillClock, batch

CONFIG = IntakeConfig(linger_s=0.4, period_s=1.0, group_rows=8, save_s=60.0)


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def queue(clock):
    return BatchQueue(clock, CONFIG)


def sizes(taken):
    return {record: [w.batch.rows for w in waiting] for record, waiting in taken.items()}


def test_few_rows_wait_and_are_taken_once(queue, clock):
    queue.put(batch(0, 3))
    queue.put(batch(3, 2))
    assert queue.take() == {}
    clock.now_s = 0.4
    assert sizes(queue.take()) == {"steps": [3, 2]}
    assert queue.take(everything=True) == {}


def test_the_wait_begins_anew_after_the_rows_were_taken(queue, clock):
    queue.put(batch(0, 3))
    clock.now_s = 0.5
    queue.take()
    queue.put(batch(3, 3))
    assert queue.take() == {}


def test_enough_rows_do_not_wait(queue):
    queue.put(batch(0, 5))
    queue.put(batch(5, 3))
    assert sizes(queue.take()) == {"steps": [5, 3]}


def test_an_insert_is_bounded_in_bytes_too_but_a_single_batch_is_taken(clock):
    queue = BatchQueue(clock, replace(CONFIG, insert_bytes=2 * batch(0, 4).table.nbytes))
    for first in range(0, 20, 4):
        queue.put(batch(first, 4))
    assert [sizes(queue.take(everything=True)) for _ in range(4)] == [
        {"steps": [4, 4]},
        {"steps": [4, 4]},
        {"steps": [4]},
        {},
    ]
    queue = BatchQueue(clock, replace(CONFIG, insert_bytes=1))
    queue.put(batch(0, 4))
    assert sizes(queue.take(everything=True)) == {"steps": [4]}


def test_inserts_of_few_rows_keep_their_distance_and_full_ones_do_not(queue, clock):
    queue.put(batch(0, 3))
    clock.now_s = 0.4
    queue.take()
    queue.put(batch(3, 3))
    clock.now_s = 1.3
    assert queue.take() == {}
    clock.now_s = 1.4
    assert sizes(queue.take()) == {"steps": [3]}
    queue.put(batch(6, 8))
    assert sizes(queue.take()) == {"steps": [8]}


def few_rows_come_after_s(queue, clock):
    """How long after the last insert the next few rows are taken."""
    queue.put(batch(0, 1))
    queue.take(everything=True)
    began_s = clock.now_s
    queue.put(batch(1, 1))
    while not queue.take():
        clock.now_s += 0.125
    return clock.now_s - began_s


def took_often(queue, seconds):
    for _ in range(8):
        queue.took(seconds)


@pytest.mark.parametrize(
    ("took_s", "after_s"), [(0.0, 1.0), (0.02, 1.0), (0.03, 1.5), (0.04, 2.0), (9.0, 2.0)]
)
def test_where_inserts_take_long_few_rows_wait_longer_up_to_a_limit(queue, clock, took_s, after_s):
    took_often(queue, took_s)
    assert few_rows_come_after_s(queue, clock) == pytest.approx(after_s, abs=0.125)


def test_full_inserts_may_take_long_and_slow_nothing(queue, clock):
    queue.put(batch(0, 8))
    queue.take()
    took_often(queue, 9.0)
    assert few_rows_come_after_s(queue, clock) == 1.0


def test_one_slow_insert_alone_changes_little_and_a_hurry_for_a_while_everything(queue, clock):
    queue.took(0.03)
    assert few_rows_come_after_s(queue, clock) == 1.25
    took_often(queue, 9.0)
    queue.hurry()
    assert few_rows_come_after_s(queue, clock) == 1.0
    clock.now_s += CONFIG.hurry_s
    assert few_rows_come_after_s(queue, clock) == 2.0


def test_everything_can_be_taken_at_once(queue):
    queue.put(batch(0, 1))
    assert sizes(queue.take(everything=True)) == {"steps": [1]}


def test_a_sender_that_leaves_does_not_stop_its_rows(queue):
    result = queue.put(batch(0, 1))
    assert not result.cancel()
    assert len(queue.take(everything=True)["steps"]) == 1


def test_waiting_ends_when_a_batch_is_due_and_begins_not_where_one_is():
    queue = BatchQueue(StillClock(), replace(CONFIG, linger_s=0.001))
    queue.put(batch(0, 3))
    queue.wait()
    queue.put(batch(3, 9))
    queue.wait()


def test_waiting_ends_when_a_batch_comes_or_somebody_wakes_it(queue):
    """Without either it would last a minute."""
    for end in (lambda: queue.put(batch(0, 9)), queue.wake):
        waiter = threading.Thread(target=queue.wait)
        waiter.start()
        while waiter.is_alive():
            end()
            waiter.join(timeout=0.01)
        queue.take(everything=True)


def test_a_batch_that_waits_already_is_not_added_again_and_its_sender_hears_too(queue):
    first, *again = (queue.put(batch(0, 5)) for _ in range(20))
    assert queue.rows == 5
    (waiting,) = queue.take(everything=True)["steps"]
    waiting.stored(5)
    assert [first.result(timeout=0), *(f.result(timeout=0) for f in again)] == [5] + 19 * [0]
    queue.put(batch(0, 5))
    assert sizes(queue.take(everything=True)) == {"steps": [5]}


def test_above_the_limit_a_sender_keeps_its_rows_until_others_are_stored(clock):
    queue = BatchQueue(clock, replace(CONFIG, waiting_rows=10))
    queue.put(batch(0, 50))  # one alone may be larger
    with pytest.raises(Unavailable, match="50 rows wait"):
        queue.put(batch(50, 1))
    queue.put(batch(0, 50))
    queue.take()
    queue.put(batch(50, 8))
    with pytest.raises(Unavailable):
        queue.put(batch(58, 3))
    queue.put(batch(58, 2))


def test_one_insert_holds_so_many_rows_and_the_rest_waits_for_the_next(clock):
    queue = BatchQueue(clock, replace(CONFIG, insert_rows=20))
    for first, rows in ((0, 8), (8, 8), (16, 8), (24, 30), (54, 8)):
        queue.put(batch(first, rows))
    assert [sizes(queue.take()) for _ in range(5)] == [
        {"steps": [8, 8]}, {"steps": [8]}, {"steps": [30]}, {"steps": [8]}, {}
    ]  # fmt: skip
    assert queue.rows == 0


def test_above_the_limit_of_bytes_a_sender_keeps_its_rows_too(clock):
    size = batch(0, 5).table.nbytes
    queue = BatchQueue(clock, replace(CONFIG, waiting_bytes=2 * size))
    queue.put(batch(0, 50))  # one alone may be larger
    with pytest.raises(Unavailable, match="bytes wait for the store already"):
        queue.put(batch(50, 1))
    queue.take(everything=True)
    queue.put(batch(0, 5))
    queue.put(batch(5, 5))
    with pytest.raises(Unavailable, match="bytes wait"):
        queue.put(batch(10, 5))
    queue.take(everything=True)
    queue.put(batch(10, 5))
