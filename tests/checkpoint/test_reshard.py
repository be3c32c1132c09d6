"""Saved at one parallel shape, loaded at another: bit-equal, optimizer included; and the laws behind it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from pulsetrain.checkpoint.export import export_safetensors
from pulsetrain.checkpoint.memory.layout import Entry, Layout, aligned
from pulsetrain.checkpoint.memory.slots import payload_offset
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Blob, Checkpoints, Manifest, Segment, Table
from pulsetrain.checkpoint.storage.tensor_index import TensorIndex
from pulsetrain.core.errors import CheckpointError, CorruptData
from tests.repository import ROOT


def store(folder: Path, shards: dict[int, list[tuple[str, np.ndarray, tuple, tuple]]]) -> Checkpoints:
    """Commit step 1 of job j: for each rank (name, local array, start, global shape)."""
    import xxhash

    storage = open_storage(str(folder))
    tables, blobs = {}, {}
    for rank, parts in shards.items():
        entries, offset = [], 0
        for name, array, at, whole in parts:
            entries.append(
                Entry(
                    name=name,
                    dtype=str(array.dtype),
                    shape=array.shape,
                    offset=offset,
                    bytes=array.nbytes,
                    at=at,
                    whole=whole,
                )
            )
            offset = aligned(offset + array.nbytes)
        tree = {"d": [[e.name, {"t": i}] for i, e in enumerate(entries)]}
        head = Layout(entries=tuple(entries), tree=tree).encode()
        begin = payload_offset(len(head), 2)
        pieces = [(0, head + b"[]")]
        pieces += [(begin + e.offset, p[1].tobytes()) for e, p in zip(entries, parts, strict=True) if e.bytes]
        segments, at = [], 0
        for start, data in pieces:
            digest = xxhash.xxh3_128_hexdigest(data)
            segments.append(Segment(offset=start, bytes=len(data), hash=digest))
            blobs.setdefault(digest, Blob(file=f"step-000000000001/{rank}.pack", offset=at, bytes=len(data)))
            at += len(data)
        storage.put(f"j/step-000000000001/{rank}.pack", [d for _, d in pieces])
        tables[rank] = Table(
            rank=rank,
            layout_bytes=len(head),
            values_bytes=2,
            payload_bytes=offset,
            segments=tuple(segments),
        )
    manifest = Manifest(
        job="j",
        step=1,
        attempt=0,
        world=len(shards),
        created_ns=0,
        written_bytes=0,
        tables=tables,
        blobs=blobs,
    )
    storage.put("j/step-000000000001/manifest.json", [manifest.encode()])
    return Checkpoints(storage, "j")


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


@settings(max_examples=60, deadline=None)
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
        return store(folder / place, shards)

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
    checkpoints = store(tmp_path, shards)
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
    checkpoints = store(tmp_path, {0: [("x", half, (0, 0), (4, 3))]})
    index = TensorIndex(checkpoints, checkpoints.manifest(1))
    assert index.read("x", (0, 0), (2, 3)) == half.tobytes()
    with pytest.raises(CheckpointError, match="do not cover"):
        index.read("x")
    with pytest.raises(CheckpointError, match="no tensor y"):
        index.read("y")


def test_ranks_that_disagree_about_a_tensor_are_an_error(tmp_path):
    a, b = np.ones(3, dtype=np.float32), np.ones(4, dtype=np.float32)
    checkpoints = store(tmp_path, {0: [("x", a, (), ())], 1: [("x", b, (), ())]})
    with pytest.raises(CheckpointError, match="differ"):
        TensorIndex(checkpoints, checkpoints.manifest(1))


def test_a_damaged_box_is_never_read(tmp_path):
    checkpoints = store(tmp_path, {0: [("x", np.arange(9, dtype=np.int64), (), ())]})
    pack = tmp_path / "j/step-000000000001/0.pack"
    data = bytearray(pack.read_bytes())
    data[-5] ^= 8
    pack.write_bytes(data)
    with pytest.raises(CorruptData, match="damaged"):
        TensorIndex(checkpoints, checkpoints.manifest(1)).read("x")


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
    checkpoints = store(tmp_path / "store", shards)
    (file,) = export_safetensors(checkpoints, checkpoints.manifest(1), tmp_path / "one")
    with safe_open(file, "np") as tensors:
        assert sorted(tensors.keys()) == ["b", "w"]
        assert np.array_equal(tensors.get_tensor("w"), w)
        assert tensors.metadata()["step"] == "1"
    files = export_safetensors(checkpoints, checkpoints.manifest(1), tmp_path / "two", shard_bytes=50)
    index = json.loads(files[-1].read_text())
    assert index["metadata"]["total_size"] == w.nbytes + b.nbytes
    for name, expected in (("w", w), ("b", b)):
        with safe_open(tmp_path / "two" / index["weight_map"][name], "np") as tensors:
            assert np.array_equal(tensors.get_tensor(name), expected)
    with pytest.raises(CheckpointError, match="names begin with: model, optimizer"):
        export_safetensors(checkpoints, checkpoints.manifest(1), tmp_path / "x", prefix="nothing.")


def plan(name: str, tp: int, pp: int, dp: int, load: str | None, *, plain: bool = False) -> dict:
    return {"name": name, "tp": tp, "pp": pp, "dp": dp, "load": load, "plain": plain}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_every_shape_holds_the_same_bits_and_goes_on_alike(tmp_path):
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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
class TestDcp:
    """torch.distributed.checkpoint in one process, without a process group."""

    @staticmethod
    def state() -> dict:
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "step": 7}

    def test_what_dcp_saves_dcp_loads(self, tmp_path):
        import torch.distributed.checkpoint as dcp

        from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

        state = self.state()
        dcp.save(state, storage_writer=PulsetrainWriter(str(tmp_path), "j", 7), no_dist=True)
        checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
        assert checkpoints.verify(checkpoints.manifest(7)) == []
        blank = self.blank(state)
        dcp.load(blank, storage_reader=PulsetrainReader(str(tmp_path), "j"), no_dist=True)
        self.same(blank, state)

    def test_what_a_checkpointer_saves_dcp_loads_and_converts(self, tmp_path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        from pulsetrain.checkpoint.checkpointer import Checkpointer
        from pulsetrain.checkpoint.dcp import PulsetrainReader
        from pulsetrain.checkpoint.memory.arena import create_arena
        from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig

        torch.manual_seed(5)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        service = CheckpointService(
            CheckpointServiceConfig(storage=str(tmp_path), replicas=1), job="j", node="n", address="127.0.0.1"
        )
        fd = create_arena()
        service.attach(0, fd)
        saver = Checkpointer(
            {"model": model, "optimizer": optimizer}, environ={"PULSETRAIN_ARENA_FD": str(fd)}
        )
        saver.save(5, durable=True).wait_durable(10)
        saver.close()
        service.close()
        names = ("state.weight.exp_avg", "state.bias.exp_avg_sq")
        blank = {
            "model": {k: torch.zeros_like(v) for k, v in model.state_dict().items()},
            "optimizer": {n: torch.zeros(3, 4) if "weight" in n else torch.zeros(3) for n in names},
        }
        dcp.load(blank, storage_reader=PulsetrainReader(str(tmp_path), "j", 5), no_dist=True)
        assert all(torch.equal(blank["model"][k], v) for k, v in model.state_dict().items())
        assert torch.equal(blank["optimizer"][names[0]], optimizer.state[model.weight]["exp_avg"])
        everything: dict = {}
        _load_state_dict(
            everything,
            storage_reader=PulsetrainReader(str(tmp_path), "j", 5),
            planner=_EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
        assert torch.equal(everything["model.weight"], model.weight)

    def test_dcps_own_converter_reads_an_exported_step(self, tmp_path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        from pulsetrain.checkpoint.dcp import PulsetrainWriter, export_dcp

        state = self.state()
        dcp.save(state, storage_writer=PulsetrainWriter(str(tmp_path / "store"), "j", 7), no_dist=True)
        assert export_dcp(str(tmp_path / "store"), "j", tmp_path / "dcp") == 7
        dcp_to_torch_save(tmp_path / "dcp", tmp_path / "state.pt")
        found = torch.load(tmp_path / "state.pt", weights_only=False)
        for name, tensor in state["model"].items():
            assert torch.equal(found[f"model.{name}"], tensor)

    def test_a_step_that_is_not_there_is_said(self, tmp_path):
        from pulsetrain.checkpoint.dcp import PulsetrainReader

        with pytest.raises(CheckpointError, match="step 3 is not committed"):
            PulsetrainReader(str(tmp_path), "j", 3).read_metadata()

    def blank(self, value):
        if isinstance(value, torch.Tensor):
            return torch.zeros_like(value)
        if isinstance(value, dict):
            return {k: self.blank(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.blank(v) for v in value)
        return type(value)() if value is not None else None

    def same(self, a, b) -> None:
        if isinstance(b, torch.Tensor):
            assert torch.equal(a, b)
        elif isinstance(b, dict):
            assert a.keys() == b.keys()
            for key in b:
                self.same(a[key], b[key])
        else:
            assert a == b
