from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.rank.auto import mesh
from pulsetrain.collectors.rank.auto.mesh import Coordinates, axis_of, mixed, replica_of


class Shown:
    """What was published last, and how often."""

    def __init__(self):
        self.coordinates, self.sources, self.times = {}, "", 0
        self.known = Coordinates(self)

    def __call__(self, coordinates, sources):
        self.coordinates, self.sources = dict(coordinates), sources
        self.times += 1


@pytest.fixture
def shown():
    return Shown()


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("tp", "tp"),
        ("tensor_parallel", "tp"),
        ("model", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("MODEL_PARALLEL_GROUP", ""),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", ""),
        ("data_parallel", "dp"),
        ("dp_replicate", "dp"),
        ("fsdp", "dp"),
        ("context", "cp"),
        ("expert_model_parallel", "ep"),
        ("mesh_tp", ""),
        ("default_pg", ""),
    ],
)
def test_the_usual_names_of_an_axis_are_known(name, axis):
    assert axis_of(name) == axis


def test_a_job_that_names_nothing_is_data_parallel(shown):
    shown.known.note("data parallel", {"dp": 3})
    assert (shown.coordinates, shown.sources) == ({"dp": 3}, "data parallel")


def test_what_is_named_takes_the_place_of_plain_data_parallelism(shown):
    shown.known.note("data parallel", {"dp": 3})
    shown.known.note("process groups", {"tp": 1})
    assert (shown.coordinates, shown.sources) == ({"tp": 1}, "process groups")


def test_the_stronger_source_counts_whenever_it_speaks(shown):
    shown.known.note("Megatron-core", {"tp": 1, "dp": 2})
    shown.known.note("pipeline stages", {"pp": 1, "dp": 0})
    assert shown.coordinates == {"tp": 1, "dp": 2, "pp": 1}
    assert shown.sources == "Megatron-core, pipeline stages"


def test_the_same_again_is_not_published_again(shown):
    for _ in range(3):
        shown.known.note("data parallel", {"dp": 3})
    assert shown.times == 1


def test_parts_of_data_parallelism_are_one_coordinate(shown):
    shown.known.note_mesh(("dp_replicate", "dp_shard", "tp"), (2, 4, 2), (1, 2, 1))
    assert shown.coordinates == {"dp": 6, "tp": 1}


@pytest.mark.parametrize("first", [True, False])
def test_a_slice_of_a_mesh_says_less_than_the_mesh(shown, first):
    meshes = [(("dp_replicate", "dp_shard"), (2, 4), (1, 2)), (("dp_shard",), (4,), (2,))]
    for one in meshes if first else reversed(meshes):
        shown.known.note_mesh(*one)
    assert shown.coordinates == {"dp": 6}


def test_of_two_views_of_the_world_the_one_that_names_the_whole_counts(shown):
    """As torchtitan builds them: fsdp folds context parallelism in, batch does not."""
    shown.known.note_mesh(("pp", "batch", "cp", "tp"), (1, 2, 2, 1), (0, 1, 1, 0))
    shown.known.note_mesh(("pp", "dp_replicate", "fsdp", "tp"), (1, 1, 4, 1), (0, 0, 3, 0))
    assert shown.coordinates == {"pp": 0, "dp": 1, "cp": 1, "tp": 0}


def test_a_mesh_of_other_names_says_nothing(shown):
    shown.known.note_mesh(("world",), (4,), (2,))
    assert shown.times == 0


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_the_groups_of_a_regular_world_are_counted_without_gap(stride, size, blocks):
    groups = [
        [block * stride * size + offset + stride * i for i in range(size)]
        for block in range(blocks)
        for offset in range(stride)
    ]
    assert sorted(map(replica_of, groups)) == list(range(len(groups)))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)).filter(lambda p: p[1] < p[0]), max_size=4))
def test_a_mixed_coordinate_lies_within_its_dimensions(parts):
    size = mixed([(s, s - 1) for s, _ in parts]) + 1
    assert 0 <= mixed(parts) < size


@pytest.mark.parametrize(
    ("sends", "named", "wanted"),
    [
        (True, False, mesh.UNKNOWN),
        (False, False, "inferred: data parallel"),
        (True, True, "inferred: process groups"),
    ],
)
def test_ranks_that_send_to_each_other_are_not_called_data_parallel(watched, auto, sends, named, wanted):
    mesh.install(auto)
    known = Coordinates(lambda _, sources: auto.description.set("mesh", f"inferred: {sources}"))
    mesh._watch_transfers(auto, known)
    known.note("data parallel", {"dp": 1})
    if named:
        known.note("process groups", {"pp": 1})
    auto.handle.state.transfers = sends
    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([weight], lr=0.1).step()
    assert auto.description.get("mesh") == wanted


def faults():
    raise AssertionError("a fault of ours")


class FakeMesh:
    """What the hook reads of a DeviceMesh."""

    def __init__(self, names, shape, indices, _init_backend=True):
        self.mesh_dim_names, self.shape, self._indices = names, shape, indices

    def get_coordinate(self):
        return self._indices


def test_a_mesh_is_noted_when_it_is_built(shown):
    module = SimpleNamespace(DeviceMesh=type("DeviceMesh", (FakeMesh,), {}))
    mesh._watch_meshes(module, shown.known, faults)
    module.DeviceMesh(None, (2,), [1])
    module.DeviceMesh(("dp",), (2,), None)  # this rank is not in it
    assert shown.times == 0
    module.DeviceMesh(("dp", "tp"), (2, 2), [1, 0])
    assert shown.coordinates == {"dp": 1, "tp": 0}
    module.DeviceMesh(("pp", "dp", "tp"), (2, 2, 2), [1, 0, 1], _init_backend=False)  # as unflatten builds it
    assert shown.coordinates == {"pp": 1, "dp": 0, "tp": 1}


def test_a_group_is_noted_when_torch_registers_it(shown):
    module = SimpleNamespace(_register_pg_in_world=lambda group, backend_name: None)
    mesh._watch_groups(module, shown.known, faults)
    for description, rank in (("default_pg", 5), ("undefined", 1), ("expert", 1)):
        group = SimpleNamespace(group_desc=description, rank=lambda r=rank: r)
        module._register_pg_in_world(group, backend_name="gloo")
    assert shown.coordinates == {"ep": 1}


def test_megatron_and_deepspeed_are_asked_themselves(shown):
    ranks = {name: lambda value=i: value for i, name in enumerate(mesh.MEGATRON.values())}
    megatron = SimpleNamespace(initialize_model_parallel=lambda size: None, **ranks)
    mesh._watch_megatron(megatron, shown.known, faults)
    megatron.initialize_model_parallel(2)
    assert shown.coordinates == {"tp": 0, "pp": 1, "dp": 2, "cp": 3, "ep": 4}


def test_deepspeeds_grid_says_where_it_stands(shown):
    methods = {"get_stage_id": 1, "get_data_parallel_id": 2, "get_slice_parallel_rank": 3}
    grid = type("Grid", (), {name: lambda self, v=value: v for name, value in methods.items()})
    mesh._watch_deepspeed(SimpleNamespace(PipelineParallelGrid=grid), shown.known, faults)
    grid()
    assert shown.coordinates == {"tp": 3, "pp": 1, "dp": 2}


def test_what_the_script_gives_wins(watched):
    handle = watched.handle
    assert handle.infer_coordinates({"dp": 1})
    assert watched.reader.topology() == (0, 0, 1, 0, 0)
    handle.set_coordinates({"tp": 1})
    assert not handle.infer_coordinates({"dp": 1})
    assert watched.reader.topology() == (1, 0, 0, 0, 0)


def test_a_mesh_without_names_is_tensor_parallel_where_a_plan_is_applied_to_it(shown):
    mesh_module = SimpleNamespace(parallelize_module=lambda module, device_mesh, parallelize_plan: module)
    mesh._watch_plans(mesh_module, shown.known, faults)
    named = SimpleNamespace(mesh_dim_names=("ep",), ndim=1)
    unnamed = SimpleNamespace(mesh_dim_names=None, ndim=1, get_local_rank=lambda: 1)
    mesh_module.parallelize_module("model", named, {})
    assert shown.times == 0
    mesh_module.parallelize_module(module="model", device_mesh=unnamed, parallelize_plan={})
    assert shown.coordinates == {"tp": 1}
