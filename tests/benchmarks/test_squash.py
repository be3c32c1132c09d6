"""Real replicas of one device that squash: the same results, a replica that differs is caught, no hang."""

from __future__ import annotations

import signal
import time

import pytest
from moving import squash
from moving.sliced_run import sliced

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SMALL = ("--width", "64", "--layers", "2")


def test_a_root_that_stands_still_is_waited_for_only_so_long_and_changes_nothing(tmp_path):
    digests = []
    for every in (0, 10):
        folder = tmp_path / str(every)
        arguments = (*SMALL, "--steps", "400", "--out", str(folder))
        with sliced(folder, 3, 1, squash.JOB, *arguments, squash_every=every) as run:
            run.wait_for_step(20)
            run.zygote.signal(run.ranks.all[0].pid, signal.SIGSTOP)
            time.sleep(0.5)
            run.zygote.signal(run.ranks.all[0].pid, signal.SIGCONT)
            digests += [result["digest"] for result in run.results()]
            assert run.stopped() == []
            memory = run.ranks.devices.squash
            assert memory is None or memory.use(1).in_place > 20
    assert len(digests) == 6
    assert len(set(digests)) == 1


def test_nobody_waits_for_a_root_that_was_killed(tmp_path):
    arguments = (*SMALL, "--steps", "100000", "--out", str(tmp_path))
    with sliced(tmp_path, 3, 1, squash.JOB, *arguments, squash_every=10) as run:
        run.wait_for_step(20)
        root = run.ranks.all[0]
        run.zygote.signal(root.pid, signal.SIGKILL)
        assert root.ended.wait(20)
        deadline = time.monotonic() + 60
        while run.ranks.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not run.ranks.alive, "the others learn of it from gloo, for which each ends its update first"


def test_devices_that_change_while_ranks_squash_change_no_result(tmp_path):
    digests = []
    for changes in ([], [2, 1, 4, 1]):
        folder = tmp_path / str(len(changes))
        arguments = (*SMALL, "--steps", "60", "--out", str(folder))
        with sliced(folder, 4, 0, squash.JOB, *arguments, squash_every=10) as run:
            for number, devices in enumerate(changes):
                run.wait_for_step(2 + 12 * number)
                run.share(devices)
            digests += [result["digest"] for result in run.results()]
            assert run.stopped() == []
            memory = run.ranks.devices.squash
            assert not changes or memory.use(3).taken_over > 5
    assert len(set(digests)) == 1


@pytest.mark.long
def test_the_benchmark_prints_what_squashing_saves(tmp_path):
    result = squash.run(quick=True)
    assert result["squash_identical"]
    assert result["squash_caught"], result["squash_caught_by"]
    assert -3 < result["squash_saving_ratio"] < 3
