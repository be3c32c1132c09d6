"""The benchmark's own manners: what it started is gone when it is told to end."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.repository import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.integration]

BENCHMARK = ROOT / "benchmarks/stream.py"


def working_in(folder):
    """Processes that were told of a place in `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def test_a_benchmark_that_is_ended_leaves_no_broker_behind(tmp_path):
    words = [sys.executable, BENCHMARK, "--seconds", "3", "--rows", "20000", "--batch-rows", "5000"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as benchmark:
        deadline = time.monotonic() + 90
        while not working_in(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert working_in(tmp_path)
        benchmark.send_signal(signal.SIGTERM)
        benchmark.wait(timeout=60)
    deadline = time.monotonic() + 60
    while working_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert working_in(tmp_path) == []
