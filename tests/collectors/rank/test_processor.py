"""What a rank loses to other processes on its processor."""

from __future__ import annotations

import errno
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
    """A run queue whose count the test sets. `looks`: how often it was asked."""

    waited = ran = looks = 0

    def now(self):
        self.looks += 1
        return self.waited, self.ran


def test_a_steps_wait_for_a_processor_leaves_out_what_passed_while_it_waited_for_others(ring):
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    queue.waited = 3_000_000
    waits.enter_wait(3_001_000)
    waits.enter_wait(4_001_000)
    queue.waited = 6_000_000
    waits.leave_wait(7_001_000)
    queue.waited = 8_000_000
    waits.leave_wait(9_001_000)
    queue.waited, queue.ran = 9_000_000, 96_000_000
    waits.end_step(7, 1_000, 100_000_000)
    queue.waited = 9_001_000
    waits.enter_wait(110_001_000)
    queue.waited, queue.ran = 20_000_000, 196_000_000
    waits.end_step(8, 100_001_000, 100_000_000)
    queue.waited = 30_000_000
    waits.leave_wait(210_001_000)
    queue.waited, queue.ran = 32_000_000, 296_000_000
    waits.end_step(9, 200_001_000, 100_000_000)
    assert spans(reader) == [("cpu_wait", 7, 4_000_000), ("cpu_wait", 9, 2_000_000)]


def test_what_was_lost_before_the_first_step_is_no_steps(ring):
    state, reader = ring
    queue = Queue()
    waits = state.processor = processor.ProcessorWaits(state, queue)
    queue.waited, queue.ran = 14_000_000_000, 5_000_000_000  # imports, on a busy machine
    waits.begin_steps(20_000_000_000)
    queue.waited, queue.ran = 14_010_000_000, 5_060_000_000
    waits.end_step(0, 20_000_000_000, 100_000_000)
    assert spans(reader) == [("cpu_wait", 0, 10_000_000), ("off_cpu", 0, 30_000_000)]


@pytest.mark.parametrize("closed_in", ["enter", "leave", "step", "begin"])
def test_a_script_that_closes_all_descriptors_goes_on(ring, closed_in):
    state, reader = ring
    queue = Queue()
    waits = state.processor = processor.ProcessorWaits(state, queue)

    def close():
        raise OSError(errno.EBADF, "Bad file descriptor")

    for part, call in (
        ("begin", lambda: waits.begin_steps(1_000)),
        ("enter", lambda: waits.enter_wait(2_000)),
        ("leave", lambda: waits.leave_wait(3_000)),
        ("step", lambda: waits.end_step(0, 1_000, 10_000)),
    ):
        if part == closed_in:
            waits._now = close
        call()
    assert state.processor is None
    assert spans(reader) == []
    assert reader.status().errors > 0


def test_time_in_which_the_thread_could_not_have_run_is_told_apart(ring):
    """Of 100 ms it ran 40, of them 10 in a wait of 25 for others, and queued for 5. It was off for 40."""
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    queue.ran = 20_000_000
    waits.enter_wait(30_001_000)
    queue.ran, state.blocked = 30_000_000, 25_000_000
    waits.leave_wait(55_001_000)
    queue.ran, queue.waited = 40_000_000, 5_000_000
    waits.end_step(3, 1_000, 100_000_000)
    assert spans(reader) == [("cpu_wait", 3, 5_000_000), ("off_cpu", 3, 40_000_000)]
    assert "not running" in reader.names  # the lane of both: a thread that sleeps is in no run queue


def test_a_step_with_many_waits_looks_into_some_of_them_and_still_counts_its_own_losses(ring):
    """Steps of 60 waits of 1 ms, 0.2 ms of each in the queue and 0.1 running. 5 ms are lost between them."""
    state, reader = ring

    queue, at = Queue(), 1_000
    waits = processor.ProcessorWaits(state, queue)
    for step in range(3):
        start, queue.looks = at, 0
        for wait in range(60):
            at += 500_000
            queue.ran += 500_000
            waits.enter_wait(at)
            at += 1_000_000
            state.blocked += 1_000_000
            queue.waited += 200_000
            queue.ran += 100_000
            waits.leave_wait(at)
            if wait == 7:  # held up outside any wait that is looked into
                at += 5_000_000
                queue.waited += 5_000_000
        waits.end_step(step, start, at - start)
    assert spans(reader) == [("cpu_wait", step, 5_000_000) for step in range(3)]
    assert queue.looks < 2 * 20


def test_one_long_wait_among_many_short_ones_is_no_time_off_the_processor(ring):
    """63 waits of 20 us, all of them on the processor, and one of 100 ms asleep for a slow rank."""
    state, reader = ring
    queue, at = Queue(), 1_000
    waits = processor.ProcessorWaits(state, queue)
    for step in range(12):
        start = at
        for wait in range(64):
            at += 1_500_000
            queue.ran += 1_500_000
            took = 100_000_000 if wait == 40 else 20_000
            waits.enter_wait(at)
            at += took
            state.blocked += took
            queue.ran += 20_000
            waits.leave_wait(at)
        waits.end_step(step, start, at - start)
    assert spans(reader) == []


@pytest.mark.parametrize("count", [17, 18, 24, 30, 32, 48, 53, 60, 64, 70, 128])
def test_each_wait_of_a_step_has_its_turn(ring, count):
    state, _ = ring

    queue, at, seen = Queue(), 1_000, set()
    waits = processor.ProcessorWaits(state, queue)
    for step in range(40):
        for wait in range(count):
            before = queue.looks
            waits.enter_wait(at)
            seen |= {wait} if queue.looks > before and step else set()
            waits.leave_wait(at + 10)
        waits.end_step(step, at, 100_000_000)
    assert seen == set(range(count))


def test_a_step_with_few_waits_after_one_with_many_is_looked_into(ring):
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    for _ in range(64):
        waits.enter_wait(0)
        waits.leave_wait(0)
    queue.ran += 100_000_000
    waits.end_step(1, 1_000, 100_000_000)
    for at in (200_000_000, 240_000_000):
        waits.enter_wait(at)
        state.blocked += 30_000_000
        queue.waited += 10_000_000
        waits.leave_wait(at + 30_000_000)
    queue.ran += 40_000_000
    waits.end_step(2, 100_001_000, 100_000_000)
    assert spans(reader) == []


def test_a_quota_holds_the_thread_back_although_the_kernel_says_it_queued(ring):
    class Held:
        now = 0

        def held_ns(self):
            return self.now

    state, reader = ring
    queue, quota = Queue(), Held()
    waits = processor.ProcessorWaits(state, queue, quota)
    queue.ran, queue.waited, quota.now = 40_000_000, 60_000_000, 50_000_000
    waits.end_step(3, 1_000, 100_000_000)
    queue.ran, queue.waited, quota.now = 130_000_000, 70_000_000, 90_000_000
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
        began, (first, _) = time.perf_counter_ns(), queue.now()
        while (waited := queue.now()[0] - first) < 50e6 and time.perf_counter_ns() - began < 20e9:
            pass
        assert 50e6 <= waited <= time.perf_counter_ns() - began
    finally:
        os.sched_setaffinity(0, before)
        os.kill(child, 9)
        os.waitpid(child, 0)


def stepless(waits, state, queue, *, begin, lost, seconds):
    """Waits of 10 ms every 50 ms for so long. Of the time between, a share `lost` is off the processor."""
    at = begin
    for _ in range(int(seconds * 20)):
        at += 40_000_000
        queue.ran += int(40_000_000 * (1 - lost))
        waits.enter_wait(at)
        at += 10_000_000
        state.blocked += 10_000_000
        waits.leave_wait(at)
    return at


def test_where_no_step_ends_the_losses_are_written_four_times_a_second(ring):
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    at = stepless(waits, state, queue, begin=1_000, lost=0.5, seconds=6)
    assert spans(reader) == []
    queue.looks = 0
    stepless(waits, state, queue, begin=at, lost=0.5, seconds=10)
    written = spans(reader)
    queued, off = ([s for s in written if s[0] == name] for name in ("cpu_wait", "off_cpu"))
    assert {s[2] for s in queued} == {0}
    assert len(queued) == len(off) == 39
    assert {s[2] for s in off} == {100_000_000}  # of 200 ms outside of waits
    assert queue.looks <= 2 * 200 + 40


@pytest.mark.parametrize("seconds", [5, 7, 15, 40])
def test_a_step_that_ends_late_after_all_has_its_whole_loss_once(ring, seconds):
    state, reader = ring
    queue = Queue()
    waits = processor.ProcessorWaits(state, queue)
    at = stepless(waits, state, queue, begin=1_000, lost=0.5, seconds=seconds)
    waits.end_step(0, 1_000, at - 1_000)
    written = spans(reader)
    assert {step for _, step, _ in written} == {0}
    assert sum(ns for name, _, ns in written if name == "off_cpu") == seconds * 400_000_000
    assert sum(ns for name, _, ns in written if name == "cpu_wait") == 0
    begin = at
    at = stepless(waits, state, queue, begin=begin, lost=0.0, seconds=30)
    waits.end_step(1, begin, at - begin)
    assert spans(reader) == []
    begin = at
    at = stepless(waits, state, queue, begin=begin, lost=0.25, seconds=10)
    waits.end_step(2, begin, at - begin)
    assert spans(reader) == [("off_cpu", 2, 2_000_000_000)]
