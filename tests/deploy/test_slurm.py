"""A job under a real Slurm: it is ended as at its time limit, queued again, and goes on where it was."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.agent.real_processes import until
from tests.deploy.slurm_cluster import NODES, Slurm, needs_slurm
from tests.hub.test_moved_job import SCRIPT

pytestmark = [pytest.mark.alone, pytest.mark.integration, needs_slurm, pytest.mark.timeout(600)]
BATCH = Path(__file__).parents[2] / "deploy/slurm/train.sbatch"
STEPS = 400


@pytest.fixture
def slurm(tmp_path):
    folder = tmp_path / "slurm"
    folder.mkdir()
    with Slurm(folder) as slurm:
        yield slurm


@pytest.fixture
def job(slurm, tmp_path):
    """A job on two nodes, and the folder where it writes."""
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = tmp_path / "job"
    program = tmp_path / "pulsetrain"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pulsetrain.cli "$@"\n')
    program.chmod(0o755)
    slurm.env |= {
        "PULSETRAIN_BIN": str(program),
        "PULSETRAIN_FOLDER": str(folder),
        "PULSETRAIN_HOST": "127.0.0.1",
        "PULSETRAIN_DATA": str(tmp_path / "data"),
        "GPUS": "1",
    }
    words = (str(BATCH), str(tmp_path / "train.py"), str(STEPS))
    said = slurm.run("sbatch", "--nodes", "2", f"--output={tmp_path}/out", *words, cwd=tmp_path)
    number = re.search(r"\d+", said)[0]
    yield number, tmp_path / "out"
    os.system(f"SLURM_CONF={slurm.conf} scancel {number}")


def starts(slurm, number):
    """Whether the job runs. Slurm lets a queued one wait for two minutes, which is shortened here.

    A node refuses a job that starts in the same second in which its earlier run was ended there, so it may
    start two seconds after all nodes are idle.
    """
    if slurm.state(number) == "PENDING" and slurm.idle() == NODES:
        time.sleep(2)
        slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
        time.sleep(2)
    return slurm.state(number) == "RUNNING"


def test_a_job_that_is_ended_at_its_time_limit_is_queued_again_and_goes_on_there(slurm, job):
    number, out = job

    def steps():
        return [int(step) for step in re.findall(r"at step (\d+)", out.read_text() if out.exists() else "")]

    def weights():
        return set(re.findall(r"weights \d (\w{64})", out.read_text()))

    assert until(lambda: bool(steps()) and steps()[-1] >= 160, 180), (slurm.state(number), out.read_text())
    slurm.run("scancel", "--signal=TERM", number)
    assert until(lambda: slurm.state(number) == "PENDING", 60), slurm.state(number)
    before = len(steps())
    assert until(lambda: starts(slurm, number), 120), slurm.run("scontrol", "show", "job", number)
    assert until(lambda: len(weights()) == 1, 240), out.read_text()[-3000:]
    again = steps()[before:]
    assert again[0] > 150  # saved every 50 steps, persisted every 100: this one was persisted at the end
    assert again[-1] == STEPS - 1
    assert until(lambda: slurm.state(number) == "COMPLETED", 60)
