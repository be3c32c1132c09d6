"""Real ranks that take turns on fewer devices: the same parameters, no deadlock, nothing kept by the dead."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from moving import slicing
from moving.sliced_run import JOB, sliced

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
WAITS = Path(__file__).with_name("waiting_job.py")
STEPS = 40


def train(folder, changes):
    """Digests and turns of four ranks. `changes` are numbers of devices, one each eight steps."""
    arguments = ("--steps", str(STEPS), "--processor", "0.002", "--out", str(folder))
    with sliced(folder, 4, 0, JOB, *arguments) as run:
        for number, devices in enumerate(changes):
            run.wait_for_step(2 + 8 * number)
            run.share(devices)
        return {result["digest"] for result in run.results()}, run.turns()


def test_parameters_are_the_same_whatever_the_devices_and_when_they_change(tmp_path):
    own, without = train(tmp_path / "own", [])
    shared, turns = train(tmp_path / "shared", [2, 1, 4, 1])
    assert len(own) == 1
    assert shared == own
    assert [t for t, _, _ in without] == [0] * 4
    assert all(t > STEPS / 2 and not lent for t, _, lent in turns)


def test_a_job_on_one_device_from_its_start_waits_in_every_way_and_ends(tmp_path):
    digests = []
    for devices in (0, 1):
        folder = tmp_path / str(devices)
        with sliced(folder, 4, devices, WAITS, str(folder)) as run:
            digests.append([result["digest"] for result in run.results()])
    assert digests[0] == digests[1]


def test_a_killed_rank_gives_its_device_back(tmp_path):
    arguments = ("--steps", "100000", "--processor", "0.01", "--out", str(tmp_path))
    with sliced(tmp_path, 3, 1, JOB, *arguments) as run:
        run.wait_for_step(3)
        victim = run.ranks.all[1]
        run.zygote.signal(victim.pid, signal.SIGKILL)
        assert victim.ended.wait(20)
        deadline = time.monotonic() + 60
        while run.ranks.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not run.ranks.alive, "the others learn of it from gloo, for which each needs the device"


def test_the_benchmark_prints_its_ratio(tmp_path):
    result = slicing.run(quick=True)
    assert result["identical"]
    assert 0.99 < result["slicing_ratio"] < 6, "a device works for one rank at a time"
    assert result["step_s"]["1"] > result["step_s"]["4"]
