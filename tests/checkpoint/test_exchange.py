"""Ranks of a process group read what they share once between them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pulsetrain.checkpoint.reshard import load_resharded
from tests.checkpoint.test_reshard import store

WORLD = 3


def rank_main(rank: int, folder: Path) -> None:
    """Ranks 0 and 1 need the shared tensor and one of their own, rank 2 only its own."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    names = {"w"} if rank == 2 else {f"x{rank}", "shared"}
    state = {name: torch.zeros(64) for name in sorted(names)}
    step, read = load_resharded(str(folder / "store"), "j", state, group=dist.group.WORLD)
    found = {name: float(tensor.sum()) for name, tensor in state.items()}
    (folder / f"{rank}.json").write_text(json.dumps({"step": step, "read": read, "found": found}))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_two_ranks_need_is_read_once_and_what_one_needs_by_that_one(tmp_path):
    values = {"shared": 1.0, "x0": 2.0, "x1": 3.0, "w": 4.0}
    shards = {0: [(n, np.full(64, v, dtype=np.float32), (), ()) for n, v in values.items()]}
    store(tmp_path / "store", shards)
    pids = []
    for rank in range(WORLD):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                rank_main(rank, tmp_path)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * WORLD
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD)]
    for report in reports:
        assert report["step"] == 1
        assert report["found"] == {name: 64 * values[name] for name in report["found"]}
    assert sum(r["read"] for r in reports) == 4 * 256  # four tensors, each once
    assert reports[2]["read"] == 256
