"""A checkpoint saved at one parallel shape is loaded at another: bit-equal, optimizer included."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pulsetrain.checkpoint.reshard import load_resharded
from tests.checkpoint.stored import commit_arrays
from tests.repository import ROOT


def plan(name: str, tp: int, pp: int, dp: int, load: str | None, *, plain: bool = False) -> dict:
    return {"name": name, "tp": tp, "pp": pp, "dp": dp, "load": load, "plain": plain}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_every_shape_has_the_same_bits_and_trains_on_equally(tmp_path):
    plans = [
        plan("origin", 2, 2, 2, None),
        plan("dp4", 1, 1, 4, "origin"),
        plan("tp4pp2", 4, 2, 1, "origin"),
        plan("one", 1, 1, 1, "origin", plain=True),
        plan("back-from-one", 2, 2, 2, "one"),
        plan("back-from-tp4", 2, 2, 2, "tp4pp2"),
        plan("back-from-dp4", 2, 2, 2, "dp4"),
    ]
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.sharded_job", str(tmp_path), json.dumps(plans)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=460,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]

    def gathered(name: str) -> tuple[dict, dict, set]:
        digests, losses, settings_seen = {}, {}, set()
        for file in tmp_path.glob(f"{name}-[0-9].json"):
            report = json.loads(file.read_text())
            for key, value in report["digests"].items():
                assert digests.setdefault(key, value) == value, f"{name}: ranks disagree on {key}"
            losses.update(report["losses"])
            settings_seen.add((report["seen"], report["lr"]))
        return digests, losses, settings_seen

    expected, losses, settings_seen = gathered("origin")
    assert len(expected) == 4 * 5 * 4  # five parameters of four blocks, each with three optimizer tensors
    for job in plans[1:]:
        digests, next_losses, found = gathered(job["name"])
        assert digests == expected, job["name"]
        assert found == settings_seen
        assert next_losses == pytest.approx(losses, rel=1e-6)
    for file in tmp_path.glob("tp4pp2-[0-9].json"):  # nobody reads the whole model
        report = json.loads(file.read_text())
        assert report["bytes_read"] < 4 * report["held"]


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
def test_content_that_two_ranks_need_is_read_by_one_of_them(tmp_path):
    values = {"shared": 1.0, "x0": 2.0, "x1": 3.0, "w": 4.0}
    shards = {0: [(n, np.full(64, v, dtype=np.float32), (), ()) for n, v in values.items()]}
    commit_arrays(tmp_path / "store", shards)
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


def test_progress_is_the_bytes_that_came_of_those_that_are_needed(tmp_path, monkeypatch):
    seen = []

    @contextlib.contextmanager
    def shown(what, *, total, unit):
        yield lambda done, of=None: seen.append((what, done, total, unit))

    monkeypatch.setattr("pulsetrain.checkpoint.reshard.progress", shown)
    shards = {0: [(name, np.ones(64, dtype=np.float32) * n, (), ()) for n, name in enumerate("abc")]}
    commit_arrays(tmp_path, shards)
    state = {"a": torch.zeros(64), "c": torch.zeros(64)}
    load_resharded(str(tmp_path), "j", state, show_progress=True)
    assert seen == [("Loading step 1", done, 512, "bytes") for done in (256, 512)]
    assert float(state["c"].sum()) == 128
