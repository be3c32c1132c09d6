"""The demo on this machine: it comes through, and however it ends nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsetrain.faults import outside
from tests.agent.real_processes import until

OURS = "DEMO_TEST"


def bearers(mark: str) -> list[int]:
    """Processes that inherited this test's mark."""
    wanted, found = f"{OURS}={mark}".encode(), []
    for entry in outside.PROC.iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if outside.state_of(pid) not in ("", "Z")]


def heed_interrupts() -> None:
    """As in a terminal: a shell that runs the tests in the background has its children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Demo:
    """A demo in a session of its own, with what it printed."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.output = folder / "output"
        env = os.environ | {OURS: self.mark, "TMPDIR": str(self.temporary), "HOME": str(folder)}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pulsetrain.cli", "demo", *flags],
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def await_line(self, part: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while part not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    before = set(os.listdir("/dev/shm"))
    yield tmp_path
    assert until(lambda: set(os.listdir("/dev/shm")) <= before)  # other programs make files there too


def left_behind(demo: Demo) -> list[int]:
    """What of it still lives after a moment."""
    deadline = time.monotonic() + 40
    while (left := bearers(demo.mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(800)
def test_three_faults_are_named_and_healed_and_nothing_is_left(folder):
    demo = Demo(folder, "--exit", "--steps", "100", "--report", str(folder / "report.json"))
    try:
        status = demo.process.wait(timeout=700)
        report = json.loads((folder / "report.json").read_text())
        assert report["identical"], demo.text()
        assert [f["kind"] for f in report["faults"]] == ["slow_node", "stopped_rank", "killed_node"]
        assert [f["correct"] for f in report["faults"]] == [True, True, True], demo.text()
        assert all(f["lost_steps"] <= 1 for f in report["faults"])
        assert status == 0
        assert left_behind(demo) == []
        assert list(demo.temporary.iterdir()) == []
    finally:
        outside.kill_tree(demo.process.pid)
        demo.process.wait()


MOMENTS = [
    ("", 0.3),  # importing
    ("starting the hub", 0.1),
    ("dashboard", 0.5),  # agents are starting
    ("joined from", 0.2),
    ("starts on", 1.0),  # ranks meet
]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("line", "later_s", "number"),
    [(*moment, signal.SIGINT) for moment in MOMENTS]
    + [("joined from", 0.0, signal.SIGTERM), ("joined from", 0.0, signal.SIGKILL)],
)
def test_interrupted_at_any_moment_it_leaves_nothing(folder, line, later_s, number):
    demo = Demo(folder, "--exit")
    try:
        demo.await_line(line, 150)
        time.sleep(later_s)
        demo.process.send_signal(number)
        status = demo.process.wait(timeout=60)
        assert left_behind(demo) == []
        if number == signal.SIGKILL:
            assert status == -signal.SIGKILL
        else:
            assert status in (130, -number)  # the signal itself, where python had not taken it over yet
            assert list(demo.temporary.iterdir()) == []
    finally:
        outside.kill_tree(demo.process.pid)
        for pid in bearers(demo.mark):
            outside.send([pid], signal.SIGKILL)
        demo.process.wait()
