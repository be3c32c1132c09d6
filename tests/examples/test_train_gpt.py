"""The example job: an ordinary script, deterministic, with a loss that falls."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from tests.repository import ROOT

SCRIPT = ROOT / "examples" / "train_gpt.py"
SHAPE = [
    "--tp",
    "1",
    "--pp",
    "2",
    "--dp",
    "1",
    "--layers",
    "2",
    "--dim",
    "64",
    "--batch",
    "8",
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sizes(**changes: int) -> argparse.Namespace:
    given = {"tp": 2, "pp": 2, "dp": 2, "batch": 32, "microbatches": 2, "layers": 4, "dim": 128, "heads": 4}
    return argparse.Namespace(**(given | {"seq": 64, "seed": 0} | changes))


def test_pulsetrain_appears_in_at_most_eight_lines():
    code = SCRIPT.read_text().partition('"""\n\nfrom __future__')[2]
    ours = [line for line in code.splitlines() if re.search(r"pulsetrain|\bwatch\b|checkpointer", line)]
    assert len(ours) <= 8, ours
    assert all(line.endswith("# [watch]") for line in ours)
    assert code.count("# [watch]") == len(ours)


@pytest.mark.parametrize(
    ("changes", "world", "message"),
    [
        ({}, 4, "TP 2 x PP 2 x DP 2 needs 8 ranks; there are 4"),
        ({"pp": 8}, 32, "--layers 4: at least --pp 8"),
        ({"tp": 3}, 12, "--heads 4: must be a multiple of --tp 3"),
        ({"dim": 130}, 8, "--dim 130: must be a multiple of --heads 4"),
        ({"batch": 30}, 8, "--batch 30: must be a multiple of dp x microbatches = 4"),
        ({"microbatches": 1}, 8, "--microbatches 1: at least --pp 2"),
    ],
)
def test_what_does_not_fit_is_named(example, changes, world, message):
    assert message in example.misfit(sizes(**changes), world)
    assert example.misfit(sizes(), 8) == ""


def test_data_follow_from_seed_step_and_replica_alone(example):
    text = example.corpus()
    assert torch.equal(text, example.corpus())
    inputs, targets = example.batch_of(text, 7, 1, sizes())
    again, _ = example.batch_of(text, 7, 1, sizes())
    assert inputs.shape == targets.shape == (16, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(inputs, again)
    others = [example.batch_of(text, s, r, sizes(seed=d))[0] for s, r, d in ((8, 1, 0), (7, 0, 0), (7, 1, 1))]
    assert not any(torch.equal(inputs, other) for other in others)


@pytest.mark.parametrize("replicas", [1, 4])
def test_any_number_of_replicas_gets_the_same_sequences_in_a_step(example, replicas):
    text = example.corpus()
    step = [example.batch_of(text, 7, r, sizes(dp=replicas))[0] for r in range(replicas)]
    two = [example.batch_of(text, 7, r, sizes(dp=2))[0] for r in range(2)]
    assert sorted(torch.cat(step).tolist()) == sorted(torch.cat(two).tolist())


def test_without_a_number_of_replicas_all_ranks_are_used(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", "--tp", "2", "--pp", "2", "--dp", "0"])
    monkeypatch.setenv("WORLD_SIZE", "12")
    monkeypatch.setattr(example, "misfit", lambda args, world: "")
    assert example.arguments().dp == 3


@pytest.mark.integration
def test_fewer_ranks_than_needed_is_one_line_and_status_2():
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["train_gpt: TP 2 x PP 2 x DP 2 needs 8 ranks; there are 4"]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(340)
def test_two_runs_under_plain_torchrun_are_bit_identical_and_the_loss_falls(tmp_path):
    hashes, losses = [], []
    for number in range(2):
        target = tmp_path / str(number)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [
            str(SCRIPT),
            *SHAPE,
            "--steps",
            "30",
            "--log-every",
            "1",
            "--params-hash-out",
            str(target),
        ]
        env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=160)
        assert done.returncode == 0, done.stderr[-2000:]
        hashes.append(target.read_text().strip())
        losses.append([float(x) for x in re.findall(r"loss (\S+)", done.stdout)])
    assert hashes[0] == hashes[1]
    assert re.fullmatch(r"[0-9a-f]{64}", hashes[0])
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] - 1.5
