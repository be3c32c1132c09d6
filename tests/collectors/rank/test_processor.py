"""What a rank loses to other processes on its processor."""

from __future__ import annotations

import os
import time

import pytest

from pulsetrain.collectors.rank import processor
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader


@pytest.fixture
def ring():
    fd = create_ring(1024)
    yield RankState(RingWriter(fd)), RingReader(fd)
    os.close(fd)


def spans(reader):
    rows, _ = reader.drain()
    return [(reader.names[r["name"]], int(r["step"]), int(r["end"] - r["start"])) for r in rows]


class Queue:
    """A run queue whose count the test sets."""

    now = ran = 0

    def waited_ns(self):
        return self.now

    def ran_ns(self):
        return self.ran


def test_a_steps_wait_for_a_processor_leaves_out_what_passed_while_it_waited_for_others(ring):
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    queue.now = 3_000_000
    waits.enter_wait()
    waits.enter_wait()
    queue.now = 6_000_000
    waits.leave_wait()
    queue.now = 8_000_000
    waits.leave_wait()
    queue.now, queue.ran = 9_000_000, 96_000_000
    waits.end_step(7, 1_000, 100_000_000)
    queue.now = 9_001_000
    waits.enter_wait()
    queue.now, queue.ran = 20_000_000, 196_000_000
    waits.end_step(8, 100_001_000, 100_000_000)
    queue.now = 30_000_000
    waits.leave_wait()
    queue.now, queue.ran = 32_000_000, 296_000_000
    waits.end_step(9, 200_001_000, 100_000_000)
    assert spans(reader) == [("cpu_wait", 7, 4_000_000), ("cpu_wait", 9, 2_000_000)]


def test_time_in_which_the_thread_could_not_have_run_is_told_apart(ring):
    """Of 100 ms it ran 40, of them 10 in a wait of 25 for others, and queued for 5. It was off for 40."""
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    queue.ran = 20_000_000
    waits.enter_wait()
    queue.ran, state.blocked = 30_000_000, 25_000_000
    waits.leave_wait()
    queue.ran, queue.now = 40_000_000, 5_000_000
    waits.end_step(3, 1_000, 100_000_000)
    assert spans(reader) == [("cpu_wait", 3, 5_000_000), ("off_cpu", 3, 40_000_000)]


def test_a_quota_holds_the_thread_back_although_the_kernel_says_it_queued(ring):
    class Held:
        now = 0

        def held_ns(self):
            return self.now

    state, reader = ring
    queue, quota = Queue(), Held()
    waits = processor.ProcessorWaits(state, queue, quota)
    queue.ran, queue.now, quota.now = 40_000_000, 60_000_000, 50_000_000
    waits.end_step(3, 1_000, 100_000_000)
    queue.ran, queue.now, quota.now = 130_000_000, 70_000_000, 90_000_000
    waits.end_step(4, 100_001_000, 100_000_000)
    assert spans(reader) == [
        ("cpu_wait", 3, 10_000_000),
        ("off_cpu", 3, 50_000_000),
        ("off_cpu", 4, 10_000_000),
    ]


def test_two_threads_on_one_processor_wait_for_each_other():
    """The kernel's own count, on a real processor that is shared by two busy threads of two processes."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity here")
    before = os.sched_getaffinity(0)
    one = {min(before)}
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, one)
        while os.getppid() != 1:
            pass
        os._exit(0)
    try:
        os.sched_setaffinity(0, one)
        queue = processor.RunQueue()
        began, first = time.perf_counter_ns(), queue.waited_ns()
        while (waited := queue.waited_ns() - first) < 50e6 and time.perf_counter_ns() - began < 20e9:
            pass
        assert 50e6 <= waited <= time.perf_counter_ns() - began
    finally:
        os.sched_setaffinity(0, before)
        os.kill(child, 9)
        os.waitpid(child, 0)
