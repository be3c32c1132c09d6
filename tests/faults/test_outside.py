"""Stopping, slowing and killing real processes from without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.faults import outside

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
