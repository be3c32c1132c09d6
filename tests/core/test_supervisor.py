"""A loop whose turn raises is logged, counted and goes on; one that stops turning becomes stale."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pulsetrain.core.errors import Unavailable
from pulsetrain.core.supervisor import (
    RESTART_DELAY_S,
    FailureCollector,
    LoopMonitor,
    LoopThread,
    TaskSupervisor,
    ThreadSupervisor,
)


class Clock:
    """Time moves when somebody sleeps."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return int(self.now_s * 1e9)

    async def sleep(self, seconds):
        self.now_s += seconds
        await asyncio.sleep(0)


class Script:
    """A turn that does what a list says: seconds to wait, or an exception to raise. Then it waits."""

    def __init__(self, *outcomes, at_end=lambda: None):
        self.outcomes, self.at_end = list(outcomes), at_end

    def __call__(self):
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.at_end()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def task(self):
        if not self.outcomes:
            await asyncio.Event().wait()
        return self()


def run_tasks(*scripts, stale_after_s=5.0):
    """Every script to its end under one supervisor; the supervisor's last statuses and the clock."""

    async def scenario():
        clock = Clock()
        supervisor = TaskSupervisor(clock, sleep=clock.sleep)
        for number, script in enumerate(scripts):
            supervisor.add(f"loop{number}", script.task, stale_after_s=stale_after_s)
        supervisor.start()
        while any(script.outcomes for script in scripts):
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        statuses = supervisor.statuses()
        await supervisor.stop()
        return statuses, clock

    return asyncio.run(scenario())


def run_thread(*outcomes):
    """The loop on this thread until its script ends."""
    loop = LoopThread(
        "loop", Script(*outcomes, at_end=lambda: loop.stop()), stale_after_s=5, restart_delay_s=0
    )
    loop.run()
    return loop.status()


def test_a_task_sleeps_for_as_long_as_its_turn_says():
    (status,), clock = run_tasks(Script(0.25, 2.0))
    assert (status.turns, status.failures, clock.now_s) == (2, 0, 102.25)


def test_a_failed_turn_is_logged_counted_and_done_again_within_a_second():
    with capture_logs() as lines:
        (status,), clock = run_tasks(Script(ValueError("bad\nnode"), 0.0))
    assert (status.turns, status.failures, status.last_error) == (1, 1, "ValueError: bad node")
    assert clock.now_s - 100 == RESTART_DELAY_S < 1
    assert [(line["event"], line["loop"], line["error"]) for line in lines] == [
        ("loop_failed", "loop0", "ValueError: bad node")
    ]


def test_one_failing_loop_does_not_disturb_another():
    (bad, good), _ = run_tasks(Script(*[ValueError("x")] * 5), Script(*[0.1] * 5))
    assert (bad.turns, bad.failures, bad.failures_in_a_row) == (0, 5, 5)
    assert (good.turns, good.failures) == (5, 0)


def test_something_cancelled_inside_a_turn_does_not_end_the_loop():
    (status,), _ = run_tasks(Script(asyncio.CancelledError(), 0.0))
    assert (status.turns, status.failures) == (1, 1)


def test_stopping_ends_a_task_in_the_middle_of_its_turn():
    async def scenario():
        supervisor = TaskSupervisor()
        supervisor.add("waits", Script().task, stale_after_s=1)
        supervisor.start()
        await asyncio.sleep(0)
        await asyncio.wait_for(supervisor.stop(), 5)
        return supervisor.statuses()[0]

    assert asyncio.run(scenario()).failures == 0


def test_stopping_ends_a_loop_whose_turn_gets_what_it_waits_for_at_the_same_time():
    async def scenario():
        queue, loops = asyncio.Queue(), TaskSupervisor()

        async def turn():
            await asyncio.wait_for(queue.get(), 5.0)
            return 0.0

        loops.add("loop", turn, stale_after_s=1.0)
        loops.start()
        await asyncio.sleep(0.01)
        queue.put_nowait(1)
        await asyncio.sleep(0)
        await asyncio.wait_for(loops.stop(), 2.0)

    asyncio.run(scenario())


def test_a_loop_may_be_added_while_others_run_and_ends_when_its_turn_says_none():
    async def scenario():
        supervisor = TaskSupervisor()
        supervisor.start()
        supervisor.add("short", Script(0.0, None).task, stale_after_s=1)
        before = [s.name for s in supervisor.statuses()]
        for _ in range(5):
            await asyncio.sleep(0)
        return before, supervisor.statuses()

    assert asyncio.run(scenario()) == (["short"], [])


def test_work_done_once_is_counted_and_its_exception_reaches_who_waits():
    async def divide(divisor):
        return 1 / divisor

    async def scenario():
        supervisor = TaskSupervisor()
        assert await supervisor.once("divide", divide(2)) == 0.5
        with capture_logs() as lines:
            with pytest.raises(ZeroDivisionError):
                await supervisor.once("divide", divide(0))
            await asyncio.sleep(0)
        return supervisor.statuses(), lines

    (status,), lines = asyncio.run(scenario())
    assert (status.name, status.turns, status.failures, status.stale) == ("divide", 1, 1, False)
    assert [line["event"] for line in lines] == ["loop_failed"]


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_turns_and_failures_add_up_and_a_good_turn_ends_the_row_of_failures(good):
    with capture_logs():
        status = run_thread(*(0.0 if ok else ValueError("x") for ok in good))
    assert (status.turns, status.failures) == (sum(good), len(good) - sum(good))
    assert status.failures_in_a_row == [*good[::-1], True].index(True)


def test_a_traceback_is_logged_once_for_the_same_error_in_a_row():
    with capture_logs() as lines:
        run_thread(ValueError("a"), ValueError("a"), ValueError("b"), 0.0, ValueError("b"))
    assert ["exc_info" in line for line in lines] == [True, False, True, True]


def test_one_of_our_own_errors_is_logged_without_a_traceback():
    with capture_logs() as lines:
        run_thread(Unavailable("broker away"), 0.0)
    assert [(line["error"], "exc_info" in line) for line in lines] == [("Unavailable: broker away", False)]


def test_a_loop_is_stale_once_its_last_good_turn_is_too_old():
    clock = Clock()
    monitor = LoopMonitor("loop", stale_after_s=5, clock=clock)
    clock.now_s += 5
    assert (monitor.status().age_s, monitor.status().stale) == (5, False)
    clock.now_s += 1
    monitor.failed(ValueError("x"))
    assert (monitor.status().age_s, monitor.status().stale) == (6, True)
    monitor.completed()
    assert (monitor.status().age_s, monitor.status().stale) == (0, False)


def test_a_thread_that_is_waken_turns_at_once_and_stops_when_told():
    turned = threading.Semaphore(0)

    def turn():
        turned.release()
        return 3600.0

    supervisor = ThreadSupervisor()
    loop = supervisor.add("rare", turn, stale_after_s=1)
    supervisor.start()
    assert turned.acquire(timeout=10)
    loop.wake()
    assert turned.acquire(timeout=10)
    supervisor.stop()
    assert [(s.name, s.failures) for s in supervisor.statuses()] == [("rare", 0)]
    assert loop.stop()


def test_stopping_interrupts_what_a_turn_waits_for():
    waited_for = threading.Event()

    def turn():
        waited_for.wait()
        return 0.0

    loop = LoopThread("waits", turn, stale_after_s=1, interrupt=waited_for.set)
    loop.start()
    assert loop.stop(10)


def test_a_thread_may_ask_for_an_endless_wait_and_still_be_stopped():
    loop = LoopThread("idle", lambda: float("inf"), stale_after_s=1)
    loop.start()
    assert loop.stop(10)


def test_what_fails_in_one_item_is_raised_after_the_last_item():
    failures, done = FailureCollector(), []
    for item in "abc":
        with failures.collect(f"job {item}"):
            if item != "b":
                raise ValueError(item)
            done.append(item)
    assert done == ["b"]
    with pytest.raises(ExceptionGroup) as raised:
        failures.raise_any()
    assert [e.__notes__ for e in raised.value.exceptions] == [["job a"], ["job c"]]


def test_nothing_is_raised_where_nothing_failed():
    FailureCollector().raise_any()
