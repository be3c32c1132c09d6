"""The example with replicas of unequal size comes to the same whatever the degrees are."""

import os
import re
import subprocess
import sys

import pytest

from tests.repository import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def loss_of(degrees):
    """The loss of the last step, as rank 0 prints it."""
    env = os.environ | {"PULSETRAIN_REPLICA_DEGREES": ",".join(map(str, degrees)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(sum(degrees)), str(ROOT / "examples" / "train_unequal.py"), "--steps", "50"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=True)
    found = re.search(r"degrees (\S+) loss (\d+\.\d+)", done.stdout)
    assert found[1] == ",".join(map(str, degrees))
    return float(found[2])


def test_replicas_of_two_and_one_ranks_learn_what_one_rank_learns():
    alone = loss_of((1,))
    assert alone < 1.0
    assert abs(loss_of((2, 1)) - alone) < 1e-12
