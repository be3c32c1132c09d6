"""What is exported is what safetensors reads."""

import json
import os

import numpy as np
import pytest
from safetensors import safe_open

from pulsetrain.checkpoint.export import export_safetensors
from pulsetrain.core.errors import CheckpointError, UsageError
from tests.checkpoint.stored import commit_arrays


def test_shards_that_are_no_parts_of_a_whole_are_not_exported_as_such(tmp_path):
    def of(rank: int, name: str) -> tuple:
        return name, np.full(3, rank, dtype=np.float32), (), ()

    names = ("model.up.weight", "model.norm.running_mean")
    checkpoints = commit_arrays(tmp_path / "store", {rank: [of(rank, n) for n in names] for rank in (0, 1)})
    manifest = checkpoints.manifest(1)
    with pytest.raises(CheckpointError, match=r"model.up.weight: rank 1 has saved other values"):
        export_safetensors(checkpoints, manifest, tmp_path / "out")
    (file,) = export_safetensors(checkpoints, manifest, tmp_path / "out", may_differ=["model.up."])
    with safe_open(file, "np") as tensors:
        assert tensors.get_tensor("up.weight").tolist() == [0, 0, 0]
        assert tensors.get_tensor("norm.running_mean").tolist() == [0, 0, 0]


def test_export_writes_what_safetensors_reads(tmp_path):
    rng = np.random.default_rng(1)
    w, b = rng.random((6, 4), dtype=np.float32), rng.random(6, dtype=np.float32)
    shards = {
        r: [
            ("model.w", w[3 * r : 3 * r + 3], (3 * r, 0), (6, 4)),
            ("model.b", b, (), ()),
            ("optimizer.state.w.exp_avg", w[3 * r : 3 * r + 3], (3 * r, 0), (6, 4)),
        ]
        for r in range(2)
    }
    checkpoints = commit_arrays(tmp_path / "store", shards)
    (file,) = export_safetensors(checkpoints, checkpoints.manifest(1), tmp_path / "one")
    with safe_open(file, "np") as tensors:
        assert sorted(tensors.keys()) == ["b", "w"]
        assert np.array_equal(tensors.get_tensor("w"), w)
        assert tensors.metadata()["step"] == "1"
    written = []
    files = export_safetensors(
        checkpoints,
        checkpoints.manifest(1),
        tmp_path / "two",
        shard_bytes=50,
        report=lambda done, total=None: written.append((done, total)),
    )
    total = w.nbytes + b.nbytes
    assert written == [(b.nbytes, total), (total, total)]
    index = json.loads(files[-1].read_text())
    assert index["metadata"]["total_size"] == w.nbytes + b.nbytes
    for name, expected in (("w", w), ("b", b)):
        with safe_open(tmp_path / "two" / index["weight_map"][name], "np") as tensors:
            assert np.array_equal(tensors.get_tensor(name), expected)
    with pytest.raises(CheckpointError, match="names begin with: model, optimizer"):
        export_safetensors(checkpoints, checkpoints.manifest(1), tmp_path / "x", prefix="nothing.")


@pytest.mark.parametrize(
    ("failure", "seen"),
    [(OSError(28, os.strerror(28)), UsageError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_an_export_that_fails_leaves_no_part_of_a_file(tmp_path, failure, seen):
    checkpoints = commit_arrays(tmp_path / "store", {0: [("model.w", np.zeros(6, dtype="f4"), (), ())]})

    def fail(done, total=None):
        raise failure

    with pytest.raises(seen):
        export_safetensors(checkpoints, checkpoints.manifest(1), tmp_path / "hf", report=fail)
    assert list((tmp_path / "hf").iterdir()) == []
