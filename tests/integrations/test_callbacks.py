"""The callbacks under the real frameworks, each in a process of its own that writes into a ring."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("callback_script.py")
STEPS = 6


class Run:
    """One run of the script: its steps and the phases that it recorded."""

    def __init__(self, framework: str, **environ: str) -> None:
        fd = create_ring()
        environ = {**os.environ, "PULSETRAIN_RING_FD": str(fd), "OMP_NUM_THREADS": "1", **environ}
        reader = RingReader(fd)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), framework],
            env=environ,
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(fd)
        assert done.returncode == 0, done.stderr[-3000:]
        drain = Drain(reader, job="j", attempt=0, node="n", rank=0, local_rank=0, address="127.0.0.1")
        rows = [(b.record, row) for b in drain.batches(time.time_ns(), final=True) for row in b.to_rows()]
        self.last_line = done.stdout.rstrip().rpartition("\n")[2]
        self.steps = [row for record, row in rows if record == "steps"]
        self.description = json.loads(reader.description())
        self.phases = Counter(row["phase"] for record, row in rows if record == "spans")
        assert drain.errors == 0


def run(framework: str, **environ: str) -> Run:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    return Run(framework, **environ)


def test_transformers_tells_steps_losses_evaluations_and_checkpoints():
    told = run("transformers")
    assert [row["step"] for row in told.steps] == list(range(STEPS))
    assert all(row["loss"] is not None for row in told.steps)
    assert max(row["tokens"] for row in told.steps) <= 3 * 2, "two batches, and one that is fetched early"
    assert told.steps[1]["grad_norm"] is not None, "the Trainer logged this step"
    drives, driven = told.description["framework"].split(", ")
    assert (drives.split()[0], driven.split()[0]) == ("transformers", "accelerate")
    assert (told.phases["evaluation"], told.phases["checkpoint"], told.phases["optimizer"]) == (2, 2, STEPS)


def test_without_inference_the_logged_loss_counts_for_the_step_that_was_logged():
    told = run("transformers", PULSETRAIN_AUTO="0")
    assert [row["step"] for row in told.steps] == list(range(STEPS))
    assert [row["loss"] is not None for row in told.steps] == [False, True] * 3


def test_lightning_tells_the_mean_loss_of_a_steps_batches_and_every_phase():
    told = run("lightning", PULSETRAIN_AUTO="0")
    assert [row["step"] for row in told.steps] == list(range(STEPS))
    assert [row["loss"] for row in told.steps] == pytest.approx(json.loads(told.last_line), rel=1e-5)
    times = {"forward": 12, "backward": 12, "optimizer": 6, "evaluation": 2, "checkpoint": 2}
    assert {phase: told.phases[phase] for phase in times} == times
