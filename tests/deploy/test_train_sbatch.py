"""The job of deploy/slurm/train.sbatch, with fakes of Slurm's commands and of `pulsetrain`."""

import os
import signal
import subprocess

import pytest

from tests.agent.real_processes import until
from tests.repository import ROOT

SCRIPT = ROOT / "deploy/slurm/train.sbatch"
FAKES = {
    "srun": """while [ "$1" != run ]; do shift; done; exec pulsetrain "$@" """,
    "scancel": ":",
    "squeue": ":",
    "scontrol": ":",
    "hostname": 'echo "${HOST_ADDRESSES:-10.0.0.1}"',
    "pulsetrain": """
case $1 in
  serve) echo "$PULSETRAIN_HUB $*" >>served; echo $$ >>hubs; [ ! -e broken ] || exit 1
    sleep "${OPENS_FOR:-0}"; mkdir -p pulsetrain-7/hub; touch pulsetrain-7/hub/hub.json; exec sleep 60 ;;
  nodes) [ -z "${UNREACHABLE:-}" ] || { echo "no route" >&2; exit 1; }; [ -s hubs ] ;;
  status) printf '{"hub": {}, "jobs": [{"job": "train-7", "state": "%s"}], ' "${STATE:-running}"
    echo '"past_jobs": [{"job": "old", "state": "finished"}]}' ;;
  run) while [ ! -e over ]; do sleep 0.05; done; exit "${ENDS_WITH:-0}" ;;
esac
""",
}


@pytest.fixture
def job(tmp_path):
    """Starts the script in an empty folder as the job 7 of one node."""
    started = []
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def start(**environ):
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_PARTITION": "all"}
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        started.append(
            subprocess.Popen(
                [SCRIPT, "train.py"],
                cwd=tmp_path,
                env=os.environ | slurm | path | environ,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def lines(path):
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_a_hub_that_ends_is_started_again_and_ends_with_the_job(job, tmp_path):
    process = job()
    assert until(lambda: (tmp_path / "pulsetrain-7/hub-answered").exists(), 20)
    os.kill(int(lines(tmp_path / "hubs")[0]), signal.SIGKILL)
    assert until(lambda: len(lines(tmp_path / "hubs")) == 2, 20)
    (tmp_path / "over").touch()
    assert process.wait(20) == 0
    assert until(lambda: not os.path.exists(f"/proc/{lines(tmp_path / 'hubs')[1]}"), 20)
    assert "the hub ended and starts again" in process.stderr.read()


@pytest.mark.parametrize(("state", "status"), [("failed", 1), ("finished", 0)])
def test_only_this_job_says_whether_it_finished_although_an_agent_failed(job, tmp_path, state, status):
    (tmp_path / "over").touch()
    assert job(STATE=state, ENDS_WITH="1").wait(20) == status


def test_a_hub_that_cannot_start_ends_the_job(job, tmp_path):
    (tmp_path / "broken").touch()
    process = job(UNREACHABLE="1")
    assert process.wait(20) == 1
    assert "the hub did not start" in process.stderr.read()
    assert len(lines(tmp_path / "hubs")) == 1


def test_a_hub_that_nobody_reaches_ends_the_job_with_the_reason(job):
    process = job(UNREACHABLE="1", START_SECONDS="0", PULSETRAIN_HOST="10.9.9.9")
    assert process.wait(20) == 1
    assert process.stderr.read() == (
        "train.sbatch: no answer at http://10.9.9.9:20007 (PULSETRAIN_HOST says where): no route\n"
    )


def test_a_hub_that_still_opens_its_store_is_waited_for(job):
    process = job(UNREACHABLE="1", START_SECONDS="0", OPENS_FOR="60")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.5)


@pytest.mark.parametrize(
    ("environ", "url", "host"),
    [
        ({"HOST_ADDRESSES": "fd00::2 127.0.1.1 10.0.0.1"}, "http://10.0.0.1:20007", "10.0.0.1"),
        ({"HOST_ADDRESSES": "fe80::1 fd00::2"}, "http://[fd00::2]:20007", "fd00::2"),
        ({"HOST_ADDRESSES": "127.0.1.1"}, "http://127.0.1.1:20007", "127.0.1.1"),
        ({"PULSETRAIN_HOST": "::1"}, "http://[::1]:20007", "::1"),
        ({"PULSETRAIN_HUB_TLS_CERTIFICATE": "/c.pem"}, "https://10.0.0.1:20007", "10.0.0.1"),
    ],
)
def test_agents_get_an_address_at_which_they_reach_the_hub(job, tmp_path, environ, url, host):
    (tmp_path / "over").touch()
    process = job(**environ)
    assert process.wait(20) == 0, process.stderr.read()
    said = lines(tmp_path / "served")[0]
    assert said.startswith(f"{url} serve ")
    assert f"--host {host} " in said


def test_nodes_of_a_heterogeneous_job_that_do_not_train_are_told_of(job, tmp_path):
    (tmp_path / "over").touch()
    process = job(SLURM_HET_SIZE="2")
    assert process.wait(20) == 0
    assert "only the first of 2 components trains" in process.stderr.read()


def test_an_address_of_loopback_is_not_given_to_other_nodes(job):
    process = job(HOST_ADDRESSES="::1", SLURM_JOB_NUM_NODES="2")
    assert process.wait(20) == 2
    assert "set PULSETRAIN_HOST" in process.stderr.read()
