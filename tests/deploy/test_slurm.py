"""Jobs under a real Slurm: nodes are evicted, lost and replaced, and a job goes on after its time limit."""

import contextlib
import getpass
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.hub.slurm_scheduler import SlurmScheduler
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.recovery.scheduler import NodeRequest, SchedulerConfig
from tests.agent.real_processes import until
from tests.deploy.slurm_cluster import NODES, Slurm, needs_slurm
from tests.hub.test_moved_job import SCRIPT

pytestmark = [pytest.mark.paired, pytest.mark.integration, needs_slurm, pytest.mark.timeout(600)]
BATCH = Path(__file__).parents[2] / "deploy/slurm/train.sbatch"
STEPS = 400
HEALED_S = 15.0
STOP = """
    if os.path.exists("fail-" + os.environ["SLURMD_NODENAME"]):
        os.remove("fail-" + os.environ["SLURMD_NODENAME"])
        os.kill(os.getpid(), 9)
    stop = torch.tensor(float(os.path.exists("stop")))
    dist.all_reduce(stop)
    if stop > 0:
        break
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


class Job:
    """A job of `deploy/slurm/train.sbatch`. `folder` is where it keeps its hub, `out` what it prints."""

    def __init__(self, slurm, folder, *options, steps, **environ):
        (folder / "train.py").write_text(SCRIPT.replace("\n    time.sleep(0.02)\n", STOP))
        program = folder / "pulsetrain"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pulsetrain.cli "$@"\n')
        program.chmod(0o755)
        self.slurm, self.folder, self.out = slurm, folder / "job", folder / "out"
        more = {
            "PULSETRAIN_BIN": str(program),
            "PULSETRAIN_FOLDER": str(self.folder),
            "PULSETRAIN_HOST": "127.0.0.1",
            "PULSETRAIN_DATA": str(folder / "data"),
            "GPUS": "1",
        }
        words = (*options, f"--output={self.out}", str(BATCH), str(folder / "train.py"), str(steps))
        done = subprocess.run(
            ["sbatch", *words], env=slurm.env | more | environ, cwd=folder, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        self.number = re.search(r"\d+", done.stdout)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.slurm.run("scancel", "--quiet", self.number)
        assert until(lambda: self.slurm.state(self.number) in ("", "CANCELLED", "COMPLETED", "FAILED"), 60)

    def printed(self):
        return self.out.read_text() if self.out.exists() else ""

    def steps(self):
        return [int(step) for step in re.findall(r"at step (\d+)", self.printed())]

    def weights(self):
        """Digest of each rank's parameters at the end, as the ranks printed them."""
        return dict(re.findall(r"weights (\d) (\w{64})", self.printed()))

    def hub(self):
        return HubClient(find_hub(environ={"PULSETRAIN_DATA": str(self.folder / "hub")}), timeout_s=5.0)

    def ask(self):
        """The job as the hub knows it, {} where it does not answer."""
        with contextlib.suppress(PulsetrainError):
            return next(iter(self.hub().status()["jobs"]), {})
        return {}

    def nodes(self, state):
        with contextlib.suppress(PulsetrainError):
            return sorted(n["node"] for n in self.hub().nodes() if n["state"] == state and not n["cordon"])
        return []

    def recoveries(self):
        return self.ask().get("recoveries", [])

    def trains(self, step, seconds=120):
        assert until(lambda: self.ask().get("step", -1) >= step, seconds), (
            self.ask(),
            self.printed()[-3000:],
        )

    def why(self):
        return (self.ask(), self.printed()[-2000:], (self.folder / "hub.log").read_text()[-3000:])


def test_a_job_at_its_time_limit_is_queued_again_and_goes_on_where_it_was(slurm, tmp_path):
    with Job(slurm, tmp_path, "--nodes", "2", steps=STEPS, RESTART_SECONDS="8") as job:
        assert until(lambda: bool(job.steps()) and job.steps()[-1] >= 160, 180), job.printed()
        slurm.run("scancel", "--signal=USR1", "--batch", job.number)  # as Slurm does before the limit
        assert until(lambda: slurm.state(job.number) == "PENDING", 60), job.printed()
        before, ended_s = len(job.steps()), time.monotonic()
        assert until(lambda: slurm.state(job.number) == "RUNNING", 60), job.printed()
        assert time.monotonic() - ended_s < 60  # Slurm itself lets a queued job wait for two minutes
        assert until(lambda: len(job.weights()) == 2, 240), job.why()
        assert len(set(job.weights().values())) == 1
        again = job.steps()[before:]
        assert again[0] > 150  # saved every 50 steps, persisted every 100: this one was persisted at the end
        assert again[-1] == STEPS - 1
        assert until(lambda: slurm.state(job.number) == "COMPLETED", 60)


def test_a_job_that_somebody_cancels_is_not_queued_again(slurm, tmp_path):
    with Job(slurm, tmp_path, "--nodes", "1", steps=100_000) as job:
        assert until(lambda: bool(job.steps()), 180), job.printed()
        slurm.run("scancel", job.number)
        assert until(lambda: slurm.state(job.number) == "CANCELLED", 60), slurm.state(job.number)


def test_a_node_is_drained_once_and_given_back_only_by_who_drained_it(slurm):
    scheduler = SlurmScheduler(SchedulerConfig(kind="slurm"), slurm.env)
    assert "is drained" in scheduler.drain("n5", 'gpu_lost: "GPU-1"\nis lost', job="j")
    state, reason = slurm.node("n5")
    assert ("DRAIN" in state, reason) == (True, "pulsetrain: gpu_lost: GPU-1 is lost")
    assert "drained already" in scheduler.drain("n5", "again", job="j")
    assert slurm.node("n5")[1] == reason
    scheduler.give_back("n5")
    assert "DRAIN" not in slurm.node("n5")[0]
    slurm.run("scontrol", "update", "NodeName=n5", "State=DRAIN", "Reason=a new fan")
    assert scheduler.give_back("n5") == "n5 stays drained: a new fan"
    slurm.run("scontrol", "update", "NodeName=n5", "State=RESUME")
    with pytest.raises(Unavailable, match="n9"):
        scheduler.drain("n9", "not there", job="j")


def test_a_replacement_is_found_by_its_number_once_it_was_submitted(slurm, tmp_path):
    template = tmp_path / "spare.sbatch"
    template.write_text("#!/bin/sh\n#SBATCH --output=/dev/null\nsleep 60\n")
    scheduler = SlurmScheduler(SchedulerConfig(kind="slurm", template=str(template)), slurm.env)
    request = NodeRequest(job="a job", nnodes=2, least=2, number=1_800_000_000, again=True)
    first = scheduler.replace(request)
    other = scheduler.replace(replace(request, number=1_800_000_001))
    assert scheduler.replace(request) == first != other
    for said in (first, other):
        slurm.run("scancel", "--quiet", said.rpartition(" ")[2])


def test_a_hub_that_is_killed_comes_back_and_heals_what_fails_after_it(slurm, tmp_path):
    assert until(lambda: slurm.idle() == NODES, 60)
    time.sleep(2)  # a node refuses a job in the second in which its last one ended
    with Job(slurm, tmp_path, "--nodes", "2", steps=100_000) as job:
        job.trains(60, 180)
        os.kill(json.loads((job.folder / "hub/hub.json").read_text())["pid"], signal.SIGKILL)
        job.trains(80)
        (tmp_path / f"fail-{max(job.nodes('active'))}").touch()
        assert until(lambda: len(job.recoveries()) == 1, 180), job.why()
        job.trains(job.ask()["step"] + 20)


def test_evicted_and_lost_nodes_are_replaced_by_what_was_held_back_then_by_a_new_job(slurm, tmp_path):
    """Four nodes, two of them held back. The fifth is not in the allocation."""
    assert until(lambda: slurm.idle() == NODES, 60)
    time.sleep(2)  # a node refuses a job in the second in which its last one ended
    at_once = {"PULSETRAIN_CONTROLLER_FAULTS_OF_A_NODE": "1"}
    with Job(slurm, tmp_path, "--nodes", "4", steps=100_000, STANDBYS="2", **at_once) as job:
        job.trains(60, 180)
        assert until(lambda: len(job.nodes("standby")) == 2, 120), job.why()
        gone = [break_(slurm, job, tmp_path), lose(slurm, job), evict(slurm, job, "fan failed")]
        assert len(set(gone)) == 3
        assert job.nodes("active") == ["n1", "n5"]
        assert until(lambda: "DOWN" in slurm.node(gone[1])[0], 90)
        job.trains(job.ask()["step"] + 20)
        assert slurm.state(job.number) == "RUNNING"  # Slurm has not queued it again
        (tmp_path / "stop").touch()
        assert until(lambda: slurm.state(job.number) == "COMPLETED", 60), (slurm.state(job.number), job.why())
        replacements = f"pulsetrain-{job.number}"
        assert until(lambda: not slurm.run("squeue", "-h", "-n", replacements, "-t", "R,PD"), 60)


def break_(slurm, job, folder):
    """A node fails as often as the controller bears. Returns its name once a standby trains in its place."""
    node = max(job.nodes("active"))
    (folder / f"fail-{node}").touch()
    drained(slurm, job, node, "it has stopped the job 1 times in a day", recoveries=1)
    [recovery] = job.recoveries()
    print(f"broke {node}: trained on after {recovery['total_ns'] / 1e9:.1f} s")
    assert recovery["total_ns"] < HEALED_S * 1e9
    return node


def evict(slurm, job, reason):
    """Evict a node that trains. Returns its name once a node of a new job trains in its place."""
    node, known = max(job.nodes("active")), len(job.recoveries())
    job.hub().evict(node, reason, drain=True)
    drained(slurm, job, node, f"evicted by {getpass.getuser()}: {reason}", recoveries=known + 1)
    return node


def drained(slurm, job, node, reason, *, recoveries):
    """Wait until Slurm has drained the node, and the job trains without it."""
    assert until(lambda: "DRAIN" in slurm.node(node)[0], 60), job.why()
    assert slurm.node(node)[1].startswith(f"pulsetrain: {reason}")
    assert until(lambda: len(job.recoveries()) == recoveries, 180), job.why()
    assert node not in job.nodes("active")


def lose(slurm, job):
    """A machine dies. Returns its name once the job trains without it, which is before Slurm knows."""
    known = len(job.recoveries())
    node = max(job.nodes("active"))
    slurm.lose(node)
    assert until(lambda: len(job.recoveries()) > known, 60), job.why()
    assert "DOWN" not in slurm.node(node)[0]
    recovery = job.recoveries()[-1]
    print(f"lost {node}: trained on after {recovery['total_ns'] / 1e9:.1f} s")
    assert recovery["node"] == node
    return node
