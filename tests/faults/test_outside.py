"""Stopping, slowing and killing real processes from without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.faults import outside, throttle

BUSY = "while True: sum(range(1000))"
NODE = """
import ctypes, os, sys, time
for rank in (4, 5):
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(15, f"rank {rank}".encode(), 0, 0, 0)
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, b"loader", 0, 0, 0)
        time.sleep(60)
        os._exit(0)
print("up", flush=True)
time.sleep(60)
"""


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


@pytest.fixture
def node():
    process = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert eventually(lambda: len(outside.descendants(process.pid)) == 4)
    yield process
    outside.kill_tree(process.pid)
    process.communicate()


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


@pytest.mark.integration
def test_a_stopped_process_is_stopped_on_return(busy):
    outside.stop(busy.pid)
    assert outside.state_of(busy.pid) == "T"
    outside.resume([busy.pid])
    assert eventually(lambda: outside.state_of(busy.pid) == "R")


@pytest.mark.integration
def test_ranks_are_found_below_their_node(node):
    ranks = outside.ranks_below(node.pid)
    assert sorted(ranks) == [4, 5]
    assert outside.rank_pid(node.pid, 4) == ranks[4]
    with pytest.raises(UsageError, match=r"rank 3 does not run below .* ranks there: 4, 5"):
        outside.rank_pid(node.pid, 3)


@pytest.mark.integration
def test_torchruns_ranks_are_found_by_their_environment(busy):
    env = os.environ | {"RANK": "6"}
    child = subprocess.Popen([sys.executable, "-c", BUSY], env=env)
    try:
        assert eventually(lambda: outside.ranks_below(os.getpid()).get(6) == child.pid)
    finally:
        child.kill()
        child.wait()


@pytest.mark.integration
def test_killing_a_node_leaves_nothing_of_it(node):
    victims = outside.kill_tree(node.pid)
    assert len(victims) == 5
    assert victims[0] == node.pid
    assert all(outside.state_of(pid) in ("", "Z") for pid in victims)


def test_a_process_that_is_gone_is_said_to_be():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(UsageError, match="is gone"):
        outside.stop(process.pid)
    assert outside.state_of(process.pid) == ""
    assert outside.descendants(process.pid) == []
