"""A script that saves and resumes by itself is killed: it goes on, and the lost steps are counted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until, with_environment
from tests.hub.test_real_job import Site, opened
from tests.repository import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS, EVERY = 120, 10
JOB = ROOT / "benchmarks" / "jobs" / "ddp.py"


@pytest.fixture
def site(tmp_path):
    with opened(Site(tmp_path)) as site:
        yield site


def launch(site, job, out):
    flags = ["--nproc-per-node", "2", "--job", job, str(JOB), "--steps", str(STEPS)]
    flags += ["--save-every", str(EVERY), "--out", str(out), "--width", "192", "--batch", "8"]
    run = subprocess.Popen(
        [sys.executable, "-m", "pulsetrain.cli", "run", *flags],
        env=site.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    site.nodes.append(run)
    return run


def status(site, job):
    rows = HubClient(find_hub(environ=site.env)).status()["jobs"]
    return next((row for row in rows if row["job"] == job), {})


def newest_step(site, job):
    own = status(site, job).get("own_checkpoint")
    return own["step"] if own else -1


def final_loss(output):
    (line,) = [line for line in output.splitlines() if "final loss" in line]
    return line.rpartition(" ")[2]


def kill_a_rank(site, job):
    """Kill rank 1 with SIGKILL once two of the script's own checkpoints are known. Returns the newest."""
    assert until(lambda: newest_step(site, job) >= 2 * EVERY - 1, 120)
    assert until(
        lambda: status(site, job)["own_checkpoint"]["complete"], 10
    )  # the first one seen takes longer
    (pid,) = [
        pid for pid in with_environment("SITE_MARK", site.mark) if f"rank 1 of job {job}" in _title(pid)
    ]
    own = status(site, job)["own_checkpoint"]
    os.kill(pid, signal.SIGKILL)
    return own


def _title(pid):
    return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace")


def test_a_killed_rank_costs_the_steps_since_the_scripts_own_checkpoint(site, tmp_path):
    undisturbed = launch(site, "whole", tmp_path / "whole")
    run = launch(site, "cut", tmp_path / "cut")
    own = kill_a_rank(site, "cut")
    output = run.communicate()[0]
    assert run.returncode == 0, output
    assert final_loss(output) == final_loss(undisturbed.communicate()[0])
    _check_checkpoint(own, tmp_path / "cut")
    job = status(site, "cut")
    assert job["own_checkpoint"]["bytes"] == (tmp_path / "cut" / "ckpt.pt").stat().st_size
    _check_recovery(job, own)


def _check_checkpoint(own, folder):
    assert own["complete"]
    assert (own["attempt"], own["ranks"], own["files"]) == (0, [0], 1)
    assert own["step"] % EVERY == EVERY - 1
    assert own["path"] in (str(folder / "ckpt.pt"), str(folder / "ckpt.pt.new"))
    assert 0 <= own["age_s"] < 60


def _check_recovery(job, own):
    (recovery,) = job["recoveries"]
    assert recovery["resumed_by"] == "script"
    assert recovery["resumed_step"] >= own["step"]
    assert recovery["resumed_step"] % EVERY == EVERY - 1
    assert recovery["lost_steps"] == recovery["from_step"] - recovery["resumed_step"]
    assert 0 <= recovery["lost_steps"] <= EVERY
    assert job["step"] == STEPS - 1
