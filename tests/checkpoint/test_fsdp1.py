"""Models that torch's first FSDP wraps, on two real ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.paired]
ROOT = Path(__file__).parents[2]


def outputs(folder, mode):
    """What each of two ranks prints at its end."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.checkpoint.fsdp1_job", str(folder), mode]
    environ = os.environ | {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env=environ | {"RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in (0, 1)
    ]
    try:
        return [rank.communicate(timeout=50)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_a_full_state_is_restored_on_all_ranks(tmp_path):
    assert outputs(tmp_path, "full") == ["restored", "restored"]


def test_a_state_of_rank_0_only_is_refused_when_it_is_saved(tmp_path):
    told = outputs(tmp_path, "rank0_only")
    assert all(text.startswith("model: FSDP gives its state to rank 0 only") for text in told)
