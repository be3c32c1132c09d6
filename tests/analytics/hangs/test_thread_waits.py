"""Whether a main thread waits for another thread that may work."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from pulsetrain.analytics.hangs.stacks import MAIN
from pulsetrain.analytics.hangs.thread_waits import helper
from pulsetrain.collectors.machine import stacks

RESULT = ("main (train.py:5)", "result (futures/_base.py:451)", "wait (python3.11/threading.py:327)")
IDLE = ("_bootstrap (python3.11/threading.py:1002)", "_worker (futures/thread.py:83)")


@pytest.mark.parametrize(
    "busy",
    [
        (*IDLE, "fetch (data.py:7)"),
        (*IDLE, "get (requests/api.py:73)", "readinto (python3.11/socket.py:706)"),
        (*IDLE, "_WorkItem.run (futures/thread.py:58)"),
        ("_bootstrap (python3.11/threading.py:1002)", "Thread.run (python3.11/threading.py:975)"),
        ("_bootstrap (python3.11/threading.py:1002)", "save (torch/serialization.py:900)"),
    ],
)
def test_a_thread_that_is_somewhere_else_may_work(busy):
    assert helper([(MAIN, RESULT), ("pool_N", IDLE), ("pool_N", busy)]) == "pool_N"


@pytest.mark.parametrize(
    "threads",
    [
        {},
        {MAIN: RESULT},
        {MAIN: RESULT, "idle": IDLE},
        {MAIN: RESULT, "other": ("run (mine.py:1)", "acquire (python3.11/threading.py:507)")},
        {MAIN: RESULT, "ours": ("run (pulsetrain/agent/x.py:1)", "read (ssl.py:3)")},
        {MAIN: RESULT, "child: MainThread": ("main (multiprocessing/resource_tracker.py:236)",)},
        {
            MAIN: RESULT,
            "loop": ("run_forever (asyncio/base_events.py:6)", "select (python3.11/selectors.py:9)"),
        },
        {MAIN: ("main (train.py:5)",), "pool_0": (*IDLE, "fetch (data.py:7)")},
        {MAIN: (), "pool_0": (*IDLE, "fetch (data.py:7)")},
    ],
)
def test_otherwise_no_thread_is_waited_for(threads):
    assert helper(threads.items()) == ""


def test_a_line_of_the_script_may_hold_a_call_that_waits_and_is_no_python():
    line, busy = "main (train.py:5)", (*IDLE, "fetch (data.py:7)")
    assert helper({MAIN: (line,), "pool_0": busy}.items(), line) == "pool_0"
    assert helper({MAIN: (line,), "pool_0": IDLE}.items(), line) == ""
    assert (
        helper({MAIN: (line, "all_reduce (distributed/distributed_c10d.py:9)"), "pool_0": busy}.items(), line)
        == ""
    )


WAYS = {
    "result": "pool.submit(time.sleep, 60).result()",
    "map": "list(pool.map(time.sleep, [60]))",
    "join": "t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start(); t.join()",
    "get": "pool.submit(time.sleep, 60); queue.Queue().get()",
    "deadlock": "e = threading.Event(); pool.submit(e.wait); e.wait()",
    "simple get": "pool.submit(time.sleep, 60); queue.SimpleQueue().get()",
    "a worker's lock": "a = threading.Lock(); a.acquire(); pool.submit(time.sleep, 60); a.acquire()",
    "one of many": "pool = ThreadPoolExecutor(8); list(pool.map(time.sleep, [0] * 8 + [60]))",
    "own lock": "pool.submit(int).result(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


@pytest.mark.integration
@pytest.mark.parametrize("way", WAYS)
def test_real_threads_are_seen_as_py_spy_tells_them(way, tmp_path):
    script = tmp_path / "train.py"
    program = "import queue, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
    script.write_text(f"{program}pool = ThreadPoolExecutor(1)\n{WAYS[way]}")
    process = subprocess.Popen([sys.executable, str(script)])
    try:
        time.sleep(1.0)
        answer = stacks.of_node({0: process.pid})
        read, place = answer["stacks"], answer["details"]["0"]["place"]
        found = helper([(stack["thread"], tuple(stack["frames"])) for stack in read], place)
        assert bool(found) == (way not in ("deadlock", "own lock")), read
    finally:
        process.kill()
        process.wait()
