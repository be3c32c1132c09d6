"""Any part of any tensor is read right, however it was sharded when it was saved."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.storage.tensor_index import TensorIndex
from pulsetrain.core.errors import CheckpointError, CorruptData
from tests.checkpoint.stored import commit_arrays


def cut(shape: tuple[int, ...], grid: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(start, size) of each cell when every axis is split as torch.chunk does; cells may be empty."""
    cells = [((), ())]
    for length, parts in zip(shape, grid, strict=True):
        step = math.ceil(length / parts)
        spans = [(min(i * step, length), min((i + 1) * step, length)) for i in range(parts)]
        cells = [((*s, a), (*n, b - a)) for s, n in cells for a, b in spans]
    return cells


shapes = st.integers(1, 3).flatmap(
    lambda n: st.tuples(
        st.tuples(*[st.integers(1, 7)] * n),
        st.tuples(*[st.integers(1, 4)] * n),
        st.tuples(*[st.integers(1, 4)] * n),
    )
)


@given(shapes, st.sampled_from(["float32", "float16", "int64", "uint8"]), st.integers(1, 2))
def test_any_grid_is_read_as_any_other_and_back(tmp_path_factory, case, dtype, replicas):
    shape, grid, other = case
    folder = tmp_path_factory.mktemp("store")
    whole = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)

    def commit(array, cells, place):
        parts = [(s, n) for s, n in cells for _ in range(replicas)]
        shards = {
            rank: [("x", np.ascontiguousarray(array[tuple(map(slice, s, np.add(s, n)))]), s, shape)]
            for rank, (s, n) in enumerate(parts)
        }
        return commit_arrays(folder / place, shards)

    def load(checkpoints, cells):
        index = TensorIndex(checkpoints, checkpoints.manifest(1))
        out = np.zeros(shape, dtype)
        for start, size in cells:
            part = np.frombuffer(index.read("x", start, size), dtype=dtype).reshape(size)
            out[tuple(map(slice, start, np.add(start, size)))] = part
        return out

    first = commit(whole, cut(shape, grid), "a")
    there = load(first, cut(shape, other))
    assert np.array_equal(there, whole)
    back = load(commit(there, cut(shape, other), "b"), cut(shape, grid))
    assert np.array_equal(back, whole)


def test_reading_a_ranks_part_never_holds_the_whole_model(tmp_path):
    """Eight ranks' shards of 32 MiB, read as two halves by four ranks: at most a few shards are in memory."""
    import tracemalloc

    whole = {f"x{i}": np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024) + i for i in range(8)}
    shards = {
        rank: [(n, a[128 * rank : 128 * (rank + 1)], (128 * rank, 0), (1024, 1024)) for n, a in whole.items()]
        for rank in range(8)
    }
    checkpoints = commit_arrays(tmp_path, shards)
    shard_bytes, model_bytes = 128 * 1024 * 4, 8 << 22
    tracemalloc.start()
    try:
        index = TensorIndex(checkpoints, checkpoints.manifest(1))
        for name, array in whole.items():
            part = index.read(name, (256, 0), (256, 1024))
            assert part == array[256:512].tobytes()
            del part
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.bytes_read < model_bytes / 4 + (64 << 10)  # a quarter of every tensor, and the layouts
    assert peak < 12 * shard_bytes < model_bytes / 5


def test_a_gap_between_the_shards_is_an_error_and_not_zeros(tmp_path):
    half = np.ones((2, 3), dtype=np.float32)
    checkpoints = commit_arrays(tmp_path, {0: [("x", half, (0, 0), (4, 3))]})
    index = TensorIndex(checkpoints, checkpoints.manifest(1))
    assert index.read("x", (0, 0), (2, 3)) == half.tobytes()
    with pytest.raises(CheckpointError, match="do not cover"):
        index.read("x")
    with pytest.raises(CheckpointError, match="no tensor y"):
        index.read("y")


def test_ranks_that_disagree_about_a_tensor_are_an_error(tmp_path):
    a, b = np.ones(3, dtype=np.float32), np.ones(4, dtype=np.float32)
    checkpoints = commit_arrays(tmp_path, {0: [("x", a, (), ())], 1: [("x", b, (), ())]})
    with pytest.raises(CheckpointError, match="differ"):
        TensorIndex(checkpoints, checkpoints.manifest(1))


def test_a_damaged_box_is_never_read(tmp_path):
    checkpoints = commit_arrays(tmp_path, {0: [("x", np.arange(9, dtype=np.int64), (), ())]})
    pack = tmp_path / "j/step-000000000001/0.pack"
    data = bytearray(pack.read_bytes())
    data[-5] ^= 8
    pack.write_bytes(data)
    with pytest.raises(CorruptData, match="damaged"):
        TensorIndex(checkpoints, checkpoints.manifest(1)).read("x")
