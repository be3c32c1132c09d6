"""A script that nobody wrote for Pulsetrain and that pauses: it is told about, never stopped."""

import json
import subprocess
import sys
import time
from textwrap import dedent

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.hub.test_real_job import Site, opened
from tests.repository import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

PAUSE_S = 9.0
SCRIPT = """
    import os, time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(40):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 20 and dist.get_rank() == 0:
            time.sleep(PAUSE_S)  # as a script that writes its own checkpoint on one rank
    print("finished attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    dist.destroy_process_group()
"""

JOB = ROOT / "benchmarks" / "jobs" / "pausing.py"  # its pauses and hangs need nothing of Pulsetrain


@pytest.fixture
def site(tmp_path):
    with opened(Site(tmp_path)) as site:
        yield site


def launch(site, script, *arguments):
    """Run the script on two ranks. Returns what it printed and its job as the status has it."""
    command = [sys.executable, "-m", "pulsetrain.cli", "run", "--nproc-per-node", "2", "--job", "p"]
    environment = site.env | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), *arguments], env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    (job,) = HubClient(find_hub(environ=site.env)).status()["jobs"]
    return done.stdout, job


def test_a_script_that_sleeps_on_one_rank_for_longer_than_a_hang_takes_is_left_alone(site, tmp_path):
    script = tmp_path / "pausing.py"
    script.write_text(dedent(SCRIPT).replace("PAUSE_S", str(PAUSE_S)))
    printed, job = launch(site, script)
    assert printed.count("finished attempt 0") == 2
    assert (job["state"], job["attempt"], job["recoveries"]) == ("finished", 0, []), json.dumps(job)


def test_a_rank_that_skips_a_collective_is_found_and_the_job_healed_at_once(site, tmp_path):
    began_s = time.monotonic()
    printed, job = launch(site, JOB, "skip", "0", "--steps", "20", "--folder", str(tmp_path / "files"))
    assert printed.count("finished attempt 1") == 2
    (recovery,) = job["recoveries"]
    assert recovery["cause"] == "hang", json.dumps(job)
    assert time.monotonic() - began_s < 90
