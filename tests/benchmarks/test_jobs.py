"""Other people's training scripts, untouched, under torchrun and under `pulsetrain run`."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from jobs.catalogue import JOBS, Job
from jobs.compare import Outcome, Recorded, recorded, run_job

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubAddress, find_hub

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 6
SETTLE_S = 30.0


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    command = [sys.executable, "-m", "pulsetrain.cli", "serve", "--data", str(folder), "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--no-dashboard"], stdout=log, stderr=log)
    address = None
    for _ in range(900):
        try:
            address = find_hub(data=folder)
            break
        except PulsetrainError:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
    yield address
    process.terminate()
    process.wait(timeout=60)


@dataclass(frozen=True)
class Pair:
    job: Job
    alone: Outcome
    watched: Outcome
    records: Recorded

    @property
    def ranks(self) -> range:
        return range(self.job.ranks)


@pytest.fixture(scope="module", params=list(JOBS))
def pair(request, hub: HubAddress) -> Pair:
    """Both runs of a script. The records are read once every rank's last step has arrived."""
    job = JOBS[request.param]
    if job.missing:
        pytest.skip(f"{job.name}: not installed: {', '.join(job.missing)}")
    alone = run_job(job, "torchrun", args=["--steps", str(STEPS)])
    watched = run_job(job, "pulsetrain", args=["--steps", str(STEPS)], hub=hub)
    return Pair(job, alone, watched, settled(hub, job))


def settled(hub: HubAddress, job: Job) -> Recorded:
    deadline = time.monotonic() + SETTLE_S
    while True:
        records = recorded(hub, job.name)
        complete = [len(records.steps.get(rank, ())) >= STEPS for rank in range(job.ranks)]
        if all(complete) or time.monotonic() > deadline:
            return records
        time.sleep(0.5)


def test_an_untouched_script_ends_the_same_and_is_recorded_whole(pair: Pair) -> None:
    check_result(pair)
    check_traffic(pair)
    check_steps(pair)
    check_mesh(pair)


def check_result(pair: Pair) -> None:
    assert pair.alone.status == 0, pair.alone.output[-3000:]
    assert pair.watched.result == pair.alone.result, pair.watched.output[-3000:]
    assert len(pair.alone.losses) == STEPS
    assert math.isfinite(float(pair.alone.final))


def check_traffic(pair: Pair) -> None:
    """As many operations and bytes as were counted without any of our hooks."""
    assert set(pair.alone.traffic) == set(pair.ranks)
    assert pair.records.traffic == pair.alone.traffic


def check_steps(pair: Pair) -> None:
    assert pair.records.steps == dict.fromkeys(pair.ranks, tuple(range(STEPS)))
    for rank in pair.ranks:
        assert set(pair.job.phases) <= pair.records.phases[rank]
    losses = [loss for rank in pair.ranks for loss in pair.records.losses[rank] if loss is not None]
    assert len(losses) >= STEPS
    assert all(math.isfinite(loss) for loss in losses)


def check_mesh(pair: Pair) -> None:
    """The ranks differ on the job's axes, and on no other."""
    for axis in ("tp", "pp", "dp", "cp", "ep"):
        places = [pair.records.mesh[rank][axis] for rank in pair.ranks]
        assert places == (list(pair.ranks) if axis in pair.job.mesh else [0] * pair.job.ranks), axis
