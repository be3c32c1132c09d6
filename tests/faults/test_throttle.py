"""Real processes are slowed down, and run at full speed again whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.faults import outside, throttle

BUSY = "while True: sum(range(1000))"


def eventually(holds: Callable[[], bool], timeout_s: float = 40.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def busy():
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    yield process
    process.kill()
    process.wait()


def stopped_share(pid: int, seconds: float) -> float:
    seen, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append(outside.state_of(pid) == "T")
        time.sleep(0.001)
    return sum(seen) / len(seen)


@pytest.mark.integration
def test_a_throttled_process_stands_still_for_its_share_and_then_no_more(busy):
    with throttle.Throttle([busy.pid], 4.0):
        assert eventually(lambda: outside.state_of(busy.pid) == "T")
        assert stopped_share(busy.pid, 1.0) > 0.3
    assert stopped_share(busy.pid, 0.2) == 0


@pytest.mark.integration
def test_a_throttled_process_does_less_work(busy):
    def work(seconds: float) -> float:
        """How much it ran of the time in which it was not queueing for a processor."""
        account, began = throttle.Work(busy.pid), time.monotonic()
        time.sleep(seconds)
        ran_s, queued_s = account.since()
        return ran_s / (time.monotonic() - began - queued_s)

    with throttle.Throttle([busy.pid], 4.0):
        assert eventually(lambda: outside.state_of(busy.pid) == "T")
        slow = work(1.0)
    assert work(1.0) > 1.5 * slow


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_victim_runs_on_when_whoever_throttled_it_dies(busy, number):
    code = f"from pulsetrain.faults.throttle import Throttle\nThrottle([{busy.pid}], 10.0).start()\ninput()\n"
    injector = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert eventually(lambda: outside.state_of(busy.pid) == "T")
    injector.send_signal(number)
    injector.communicate()
    assert eventually(lambda: stopped_share(busy.pid, 0.3) == 0)


@pytest.mark.integration
def test_a_killed_throttling_process_leaves_nothing_stopped(busy):
    slow = throttle.Throttle([busy.pid], 10.0)
    slow.start()
    assert slow._child is not None
    assert eventually(lambda: outside.state_of(busy.pid) == "T")
    slow._child.kill()
    slow.end()
    slow.end()
    assert stopped_share(busy.pid, 0.1) == 0


@pytest.mark.integration
def test_a_throttled_process_does_less_than_its_peer(busy):
    peer = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        with throttle.Throttle([busy.pid], 3.0, peers=[peer.pid]) as slow:
            assert slow.running
            mine, its = throttle.Work(busy.pid), throttle.Work(peer.pid)
            time.sleep(1.5)
            assert its.since()[0] > 1.5 * mine.since()[0] > 0
    finally:
        peer.kill()
        peer.wait()


def test_a_throttle_that_cannot_run_says_so(monkeypatch):
    monkeypatch.setattr(throttle.sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match="did not start"):
        throttle.Throttle([1], 2.0).start()


@pytest.mark.parametrize("factor", [0.5, 0, 21])
def test_a_factor_out_of_range_is_refused(factor):
    with pytest.raises(UsageError, match="allowed 1 to 20"):
        throttle.Throttle([1], factor)


seconds = st.floats(0, 10)


@given(factor=st.floats(1, 20), ran_s=seconds, queued_s=seconds, stopped_s=seconds, usual=st.floats(0, 3))
def test_a_process_that_was_stopped_for_its_debt_owes_nothing(factor, ran_s, queued_s, stopped_s, usual):
    debt_s = throttle.debt_s(factor, ran_s=ran_s, queued_s=queued_s, stopped_s=stopped_s, usual=usual)
    paid_s = throttle.debt_s(
        factor, ran_s=ran_s, queued_s=queued_s, stopped_s=stopped_s + max(debt_s, 0), usual=usual
    )
    assert paid_s <= 1e-6
