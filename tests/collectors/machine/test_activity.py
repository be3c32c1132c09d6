"""How busy silent ranks are, from a /proc of our own and from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pulsetrain.collectors.machine.activity import ActivityMeter
from tests.recovery.builders import S, status

TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc with a rank of pid 42 and its child 43, whose counters a test moves."""

    def __init__(self, root):
        self.root, self.now_ns = root, 1000 * S
        self.meter = ActivityMeter(root, machine="x86_64")
        self.process(42)

    def process(self, pid, *, parent=1, cpu_s=0.0, faults=0, io=0, call="running", tracer=0):
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        ticks = round(cpu_s * TICKS)
        (folder / "stat").write_text(
            f"{pid} (a (b) c) S {parent} 1 1 0 -1 0 {faults} 0 0 0 {ticks} 0 0 0 20 0 1 0 9 4096 3 0\n"
        )
        (folder / "io").write_text(f"rchar: {io}\nwchar: 0\nread_bytes: 7\n")
        (folder / "syscall").write_text(call + "\n")
        (folder / "status").write_text(f"Name:\tx\nTracerPid:\t{tracer}\n")

    def read(self, silent_s=5, seconds=1):
        self.now_ns += seconds * S
        statuses = [status(3, pid=42, progress_age_ns=silent_s * S)]
        return self.meter.read(statuses, self.now_ns)


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


def test_nothing_is_read_of_a_rank_that_records(proc):
    assert proc.read(silent_s=0) == ()
    assert proc.read(silent_s=0) == ()


def test_rates_are_known_from_the_second_reading_on(proc):
    assert proc.read() == ()
    proc.process(42, cpu_s=0.5, faults=30, io=1 << 20)
    (activity,) = proc.read()
    assert (activity.rank, activity.cpu_ratio, activity.io_bytes_s) == (3, 0.5, 1 << 20)
    assert (activity.faults_s, activity.still_ns) == (30, 0)


def test_a_rank_of_which_nothing_moves_is_still_for_longer_and_longer(proc):
    proc.read()
    assert [proc.read()[0].still_ns for _ in range(3)] == [S, 2 * S, 3 * S]
    proc.process(42, io=1 << 20)
    assert proc.read()[0].still_ns == 0


def test_a_rank_that_recorded_in_between_begins_anew(proc):
    proc.read()
    proc.read()
    proc.read(silent_s=0)
    assert proc.read() == ()


def test_what_its_children_do_is_work_of_the_rank(proc):
    proc.process(43, parent=42)
    proc.process(44, parent=43)
    proc.read()
    proc.process(44, parent=43, cpu_s=1.0, io=8192)
    (activity,) = proc.read()
    assert (activity.cpu_ratio, activity.helper_cpu_ratio) == (0.0, 1.0)
    assert (activity.io_bytes_s, activity.still_ns) == (8192, 0)


@pytest.mark.parametrize(
    ("call", "waits_in"),
    [
        ("230 0x1 0x1 0x7ff", "sleep"),
        ("202 0x55 0x189 0x0 0x0 0x0", "lock"),
        ("202 0x55 0x189 0x0 0x7ffc 0x0", "sleep"),
        ("0 0x0 0x55", "read"),
        ("7 0x55 0x1", "poll"),
        ("61 0x1", "child"),
        ("16 0x1", "other"),
        ("running", ""),
        ("-1 0x1", ""),
    ],
)
def test_what_the_main_thread_waits_in_is_named(proc, call, waits_in):
    proc.process(42, call=call)
    proc.read()
    assert proc.read()[0].waits_in == waits_in


def test_a_debugger_shows(proc):
    proc.process(42, tracer=7)
    proc.read()
    assert proc.read()[0].traced


@pytest.mark.parametrize("name", ["stat", "io", "syscall", "status"])
@pytest.mark.parametrize("text", ["", "rubbish\n", "x) S 1 y\n\n:::\n", "TracerPid:\n"])
def test_a_file_that_is_missing_or_rubbish_stops_nothing(proc, name, text):
    path = proc.root / "proc" / "42" / name
    path.write_text(text)
    proc.read()
    assert len(proc.read()) == 1
    path.unlink()
    assert len(proc.read()) == 1


def test_a_machine_without_proc_has_no_activity(tmp_path):
    meter = ActivityMeter(tmp_path)
    silent = [status(0, progress_age_ns=9 * S)]
    meter.read(silent, S)
    assert meter.read(silent, 3 * S)[0].cpu_ratio == 0


@pytest.mark.integration
def test_a_real_loop_and_a_real_sleep_are_told_apart():
    programs = ("while True: pass", "import time; time.sleep(60)")
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        time.sleep(1.0)
        meter = ActivityMeter()
        silent = [status(r, pid=p.pid, progress_age_ns=9 * S) for r, p in enumerate(processes)]
        meter.read(silent, time.time_ns())
        time.sleep(2.0)
        loops, sleeps = meter.read(silent, time.time_ns())
        assert loops.cpu_ratio > 0.05
        assert (loops.still_ns, loops.waits_in) == (0, "")
        assert sleeps.cpu_ratio < 0.05
        assert sleeps.still_ns > S
        assert sleeps.waits_in in ("sleep", "")
    finally:
        for process in processes:
            process.kill()
            process.wait()
