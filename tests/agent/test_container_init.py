"""The first process of a container. Here it is one that the kernel gives all orphans below it."""

import signal
import subprocess
import sys

import pytest

FIRST = """
import ctypes, os, pathlib, signal, sys, time
from pulsetrain.agent.container_init import live_beneath_init
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
first = os.getpid()
live_beneath_init(1)
def children():
    return pathlib.Path(f"/proc/{first}/task/{first}/children").read_text().split()
"""
ORPHANS = """
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.wait()
until = time.monotonic() + 20
while len(children()) > 1 and time.monotonic() < until:
    time.sleep(0.01)
print(children() == [str(os.getpid())], os.getppid() == first, flush=True)
sys.exit(7)
"""
SIGNALS = """
got = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: got.append(number))
print("ready", flush=True)
until = time.monotonic() + 20
while len(got) < 2 and time.monotonic() < until:
    time.sleep(0.01)
print(sorted(got) == sorted([signal.SIGTERM, signal.SIGUSR1]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(script):
    return subprocess.Popen([sys.executable, "-c", FIRST + script], stdout=subprocess.PIPE, text=True)


def test_orphans_leave_no_zombies_and_the_status_is_that_of_the_agent():
    with start(ORPHANS) as process:
        assert process.communicate(timeout=30)[0] == "True True\n"
    assert process.returncode == 7


def test_signals_reach_the_agent_and_one_that_is_killed_ends_all():
    with start(SIGNALS) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        assert process.communicate(timeout=30)[0] == "True\n"
    assert process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("pid", [2, 4711])
def test_elsewhere_there_is_none(pid):
    script = (
        FIRST.replace("live_beneath_init(1)", f"live_beneath_init({pid})") + "print(os.getpid() == first)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "True\n"
