"""The project's own training for replays, in real processes that meet over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from pulsetrain import faults
from pulsetrain.faults import arithmetic

pytestmark = pytest.mark.integration

STARTUP = Path(faults.__file__).parent / "startup"
COMMAND = [sys.executable, "-m", "pulsetrain.diagnostics.replay", "--seconds", "0.5", "--limit", "20"]


def replay(size, wrong=None, environ=None):
    """What each rank ends with: (exit code, output). The products of rank `wrong` obey `environ`."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    for rank in range(size):
        torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        store_of = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        agents = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        own = {name: str(value) for name, value in (torchrun | store_of | agents).items()}
        own |= environ if rank == wrong else {}
        env = os.environ | own
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(COMMAND, env=env, **pipe))
    said = [rank.communicate(timeout=50)[0] for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


def test_healthy_ranks_train_the_same_steps_and_end_well():
    results = replay(2)
    assert [code for code, _ in results] == [0, 0], results
    steps = {text for _, text in results}
    assert len(steps) == 1
    assert steps.pop().startswith("replayed ")


def test_one_wrong_element_in_many_products_fails_the_step_on_all_ranks_and_names_the_rank(tmp_path):
    arithmetic.begin(tmp_path / "fault", every=11)
    environ = {"PYTHONPATH": str(STARTUP), arithmetic.ENVIRONMENT: str(tmp_path / "fault")}
    results = replay(3, wrong=1, environ=environ)
    assert [code for code, _ in results] == [1, 1, 1], results
    assert all("rank 1 computed other gradients than the rest" in text for _, text in results), results
