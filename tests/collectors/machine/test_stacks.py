"""py-spy on real processes: running, stopped, holding the GIL, gone, and not allowed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.machine.stacks import (
    GONE,
    NOT_ALLOWED,
    ThreadStack,
    explain,
    find_program,
    fold,
    of_node,
    parse,
    parse_process,
)
from tests.agent.real_processes import until

SCRIPT = """
import ctypes, sys, threading, time

def wait_for_ever():
    time.sleep(600)

def hold_the_gil():
    ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the GIL

threading.Thread(target=wait_for_ever, name="loader-7", daemon=True).start()
print("ready", flush=True)
{"wait": wait_for_ever, "gil": hold_the_gil}[sys.argv[1]]()
"""


def asleep(pid):
    """Whether each of its threads waits for something else than a processor."""
    time.sleep(0.03)
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return {thread.read_text().rpartition(")")[2].split()[0] for thread in threads} == {"S"}


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    children = []

    def run(how):
        child = subprocess.Popen(
            [sys.executable, str(script), how], stdout=subprocess.PIPE, start_new_session=True
        )
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        assert until(lambda: all(asleep(child.pid) for _ in range(3)))
        return child.pid

    yield run
    for child in children:
        child.kill()
        child.communicate()


def main_of(answer, rank):
    (stack,) = [s for s in answer["stacks"] if s["thread"] == "MainThread" and rank in s["ranks"]]
    return stack["frames"]


@pytest.mark.integration
def test_running_stopped_and_gil_holding_processes_are_all_read(start):
    pids = {0: start("wait"), 1: start("wait"), 2: start("gil"), 3: start("wait")}
    os.kill(pids[3], signal.SIGSTOP)
    answer = of_node(pids)
    assert answer["blind"] == {}
    assert [f.split(" ")[0] for f in main_of(answer, 0)] == ["<module>", "wait_for_ever"]
    assert main_of(answer, 0) == main_of(answer, 1) == main_of(answer, 3)
    assert main_of(answer, 2)[-1].startswith("hold_the_gil (")
    assert {"loader-N"} == {s["thread"] for s in answer["stacks"]} - {"MainThread"}


@pytest.mark.integration
def test_a_process_that_is_gone_or_runs_no_python_is_said(start):
    child = subprocess.Popen(["sleep", "60"])
    try:
        answer = of_node({0: start("wait"), 1: 2**22 - 3, 2: child.pid})
    finally:
        child.kill()
        child.wait()
    assert answer["blind"]["1"] == GONE
    assert answer["blind"]["2"].startswith("py-spy: ")
    assert "\n" not in answer["blind"]["2"]
    assert main_of(answer, 0)


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read")
def test_without_the_right_to_trace_one_line_says_so(start, tmp_path):
    other = tmp_path / "py-spy"
    other.write_text(
        f'#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups {find_program()} "$@"\n'
    )
    other.chmod(0o755)
    answer = of_node({0: start("wait")}, program=str(other))
    assert answer == {"stacks": [], "blind": {"0": NOT_ALLOWED}, "details": {}}


@pytest.mark.integration
def test_a_reader_that_hangs_is_ended_in_time(start, tmp_path):
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    began = time.monotonic()
    answer = of_node({rank: os.getpid() for rank in range(3)}, program=str(slow), timeout_s=0.5)
    assert time.monotonic() - began < 100  # it sleeps for 600
    assert set(answer["blind"].values()) == {"py-spy did not answer in time"}


def test_a_program_that_is_no_program_is_said(tmp_path):
    answer = of_node({4: os.getpid()}, program=str(tmp_path / "nothing"))
    assert answer["blind"] == {"4": "py-spy does not start: No such file or directory"}


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


def test_launcher_frames_are_left_out_and_the_main_thread_is_first():
    threads = [
        {"os_thread_id": 8, "thread_name": "autograd-3", "frames": [frame("run", "/x/y/engine.py", 5)]},
        {
            "os_thread_id": 7,
            "thread_name": None,
            "frames": [
                frame("forward", "/home/u/job/train.py", 9),
                frame("<module>", "/home/u/job/train.py", 20),
                frame("_run_code", "<frozen runpy>", 88),
                frame("live", "/site/pulsetrain/agent/processes/rank_main.py", 3),
            ],
        },
    ]
    main, other = parse(json.dumps(threads), 7)
    assert main == ThreadStack(
        thread="MainThread", frames=("<module> (job/train.py:20)", "forward (job/train.py:9)")
    )
    assert other.thread == "autograd-N"


@pytest.mark.parametrize("text", ["", "[1]", '[{"frames": []}]', "null"])
def test_what_is_no_dump_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse(text, 1)


@given(st.text())
def test_any_complaint_is_one_line(text):
    assert len(explain(text).splitlines()) == 1


@given(
    st.dictionaries(
        st.integers(0, 20),
        st.lists(st.builds(ThreadStack, thread=st.just("t"), frames=st.tuples(st.sampled_from("ab")))),
    )
)
def test_folding_keeps_every_rank_and_stack(found):
    entries = fold(found)
    assert {(r, tuple(e["frames"])) for e in entries for r in e["ranks"]} == {
        (r, s.frames) for r, stacks in found.items() for s in stacks
    }
    assert len({(e["thread"], tuple(e["frames"])) for e in entries}) == len(entries)


@pytest.mark.parametrize(
    ("line", "idle"),
    [
        ("while True: pass", True), ("while not done:", True), ("pass  # spin", True), ("continue", True),
        ("rows.sort()", False), ("total += 1", False), ("x in rows", False), ("while f(): pass", False),
    ],
)  # fmt: skip
def test_a_line_that_calls_or_computes_something_is_not_idle(tmp_path, line, idle):
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    frame = {"name": "main", "filename": str(script), "line": 1}
    main = {"os_thread_id": 7, "thread_name": "MainThread", "owns_gil": True, "frames": [frame]}
    read = parse_process(json.dumps([main]), 7)
    assert (read.idle_line, read.cut) == (idle, False)
    assert read.gil_frames == read.threads[0].frames


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        ("total += loss.item()", True), ("torch.cuda.synchronize()", True), ("x = out.cpu()", True),
        ("return torch._C._cuda_synchronize()", True), ("item(rows)", False), ("x = 1  # .item()", False),
    ],
)  # fmt: skip
def test_a_line_that_waits_for_a_device_is_told(tmp_path, line, waits):
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    frame = {"name": "main", "filename": str(script), "line": 1}
    main = {"os_thread_id": 7, "thread_name": "MainThread", "owns_gil": False, "frames": [frame]}
    read = parse_process(json.dumps([main]), 7)
    assert read.device_line is waits
    assert read.detail()["device_line"] is waits


def test_threads_beyond_those_that_are_kept_are_told():
    frame = {"name": "main", "filename": "a.py", "line": 1}
    threads = [
        {"os_thread_id": 7 + i, "thread_name": f"t{i}", "owns_gil": False, "frames": [frame]}
        for i in range(40)
    ]
    assert parse_process(json.dumps(threads), 7).cut
