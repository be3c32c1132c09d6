"""Where this rank stands in the job's mesh, found without a line in the script.

Each source says what it knows, axis by axis. For each axis the strongest source counts, in this order:
Megatron-core's parallel state, DeepSpeed's grid, a `DeviceMesh` with named dimensions, the stages of
`torch.distributed.pipelining`, a mesh without names that `parallelize_module` is given (tensor parallelism),
process groups whose description names an axis. If none of them names an axis,
the job is taken for data-parallel and dp is the rank. Where ranks of such a job send to each other, the
description says that the mesh is unknown. Coordinates that the script gives to `pulsetrain.init` win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Protocol

from pulsetrain.collectors.layout import AXES
from pulsetrain.collectors.rank.auto import untraced
from pulsetrain.collectors.rank.auto.after import call_after

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from pulsetrain.collectors.rank.auto.context import Auto

SOURCES = (
    "data parallel",
    "process groups",
    "parallelize_module",
    "pipeline stages",
    "DeviceMesh",
    "DeepSpeed",
    "Megatron-core",
)
"""from the weakest to the strongest"""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("tp", "tensor", "tensor_model", "model", "mp"), "tp"),
        **dict.fromkeys(("pp", "pipe", "pipeline", "pipeline_model", "stage"), "pp"),
        **dict.fromkeys(("cp", "sp", "context", "sequence"), "cp"),
        **dict.fromkeys(("ep", "expert", "expert_model"), "ep"),
        **dict.fromkeys(("dp", "data", "batch", "ddp", "hsdp"), "dp"),
        **dict.fromkeys(("dp_replicate", "replicate", "dp_shard", "shard", "fsdp"), "dp"),
    }
)
"""what dimensions and groups are called, by the axis that they mean"""
WHOLE = frozenset(("dp", "data", "batch", "ddp"))
"""names of all data parallelism together. The others name a part of it."""


def axis_of(name: str) -> str:
    """Return the axis that a name means, "" for none.

    >>> axis_of("dp_shard"), axis_of("TENSOR_MODEL_PARALLEL_GROUP"), axis_of("world")
    ('dp', 'tp', '')
    """
    if name == "MODEL_PARALLEL_GROUP":  # Megatron-core's tensor and pipeline parallelism together
        return ""
    plain = name.lower().removesuffix("_group").removesuffix("_parallel")
    return ALIASES.get(plain, "")


def mixed(parts: Sequence[tuple[int, int]]) -> int:
    """Return one coordinate for several dimensions of (size, coordinate), the last one running fastest.

    >>> mixed([(2, 1), (4, 3)])
    7
    """
    coordinate = 0
    for size, index in parts:
        coordinate = coordinate * size + index
    return coordinate


def replica_of(members: Sequence[int]) -> int:
    """Return which of the equal groups of ranks this one is, counted by their first ranks.

    Groups are blocks, or every n-th rank of a block.

    >>> replica_of([2, 3]), replica_of([1, 3]), replica_of([5, 7])
    (1, 1, 3)
    """
    first, size = members[0], len(members)
    stride = members[1] - first if size > 1 else 1
    return first // (stride * size) * stride + first % stride


ASSUMED = "data parallel"
"""the source that only stands for nothing else being known"""
UNKNOWN = "unknown: ranks send to each other"
OBSERVED_STEPS = 8
"""optimizer steps after which a rank that has not sent is taken for one that never sends"""


class Coordinates:
    """What the sources know, and what follows. `publish` gets all five coordinates and the sources in use."""

    def __init__(self, publish: Callable[[Mapping[str, int], str], None]) -> None:
        self._known: dict[str, dict[str, int]] = {source: {} for source in SOURCES}
        self._publish = publish
        self._shown: tuple[dict[str, int], str] = ({}, "")
        self._weights: dict[str, tuple[int, bool, int]] = {}

    @property
    def assumed(self) -> bool:
        """Whether nothing has named an axis."""
        return self._shown[1] == ASSUMED

    def note(self, source: str, coordinates: Mapping[str, int]) -> None:
        """Take in what `source` knows. Publish what changes."""
        self._known[source].update(coordinates)
        found, used = self._resolve()
        if found and (found, used) != self._shown:
            self._shown = found, used
            self._publish(found, used)

    def note_mesh(self, names: Sequence[str], sizes: Sequence[int], indices: Sequence[int]) -> None:
        """Take in a mesh. For each axis the largest mesh that names it counts, whenever it was made."""
        found: dict[str, int] = {}
        for axis in AXES:
            mine = [(n, s, i) for n, s, i in zip(names, sizes, indices, strict=True) if axis_of(n) == axis]
            weight = math.prod(sizes), any(n in WHOLE for n, _, _ in mine), math.prod(s for _, s, _ in mine)
            if mine and weight > self._weights.get(axis, (0, False, 0)):
                self._weights[axis] = weight
                found[axis] = mixed([(size, index) for _, size, index in mine])
        if found:
            self.note("DeviceMesh", found)

    def _resolve(self) -> tuple[dict[str, int], str]:
        found: dict[str, int] = {}
        used: list[str] = []
        for source in reversed(SOURCES):
            new = {axis: at for axis, at in self._known[source].items() if axis not in found}
            if source == ASSUMED and found:
                break
            if new:
                found |= new
                used.append(source)
        return found, ", ".join(used)


def install(auto: Auto) -> None:
    """Watch every source. A source that does not fit is counted as a fault, and the others work on."""
    handle, description = auto.handle, auto.description

    def publish(coordinates: Mapping[str, int], sources: str) -> None:
        if handle.infer_coordinates(coordinates):
            description.set("mesh", f"inferred: {sources}")

    coordinates = Coordinates(publish)
    when = auto.imports.when_imported
    fault = handle.fault
    _watch_transfers(auto, coordinates)
    when("torch.distributed.distributed_c10d", lambda module: _watch_groups(module, coordinates, fault))
    when("torch.distributed.device_mesh", lambda module: _watch_meshes(module, coordinates, fault))
    when("torch.distributed.tensor.parallel", lambda module: _watch_plans(module, coordinates, fault))
    when("torch.distributed.pipelining.stage", lambda module: _watch_stages(module, coordinates, fault))
    when("deepspeed.runtime.pipe.topology", lambda module: _watch_deepspeed(module, coordinates, fault))
    when("megatron.core.parallel_state", lambda module: _watch_megatron(module, coordinates, fault))


def _watch_transfers(auto: Auto, coordinates: Coordinates) -> None:
    """Look in the first steps whether this rank sends, which data parallelism does not."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    looked = 0

    @untraced.hook
    def stepped(*_: object) -> None:
        nonlocal looked
        if torch.compiler.is_compiling() or looked >= OBSERVED_STEPS:
            return
        looked += 1
        try:
            if auto.handle.state is not None and auto.handle.state.transfers and coordinates.assumed:
                auto.description.set("mesh", UNKNOWN)
        except Exception:  # noqa: BLE001 - training must not see our faults
            auto.handle.fault()

    register_optimizer_step_post_hook(stepped)


def _watch_groups(module: ModuleType, coordinates: Coordinates, fault: Callable[[], None]) -> None:
    def registered(_: object, pg: ProcessGroup, *args: object, **kwargs: object) -> None:
        if pg.group_desc == "default_pg":
            coordinates.note(ASSUMED, {"dp": pg.rank()})
        elif axis := axis_of(pg.group_desc):
            coordinates.note("process groups", {axis: pg.rank()})

    call_after(module, "_register_pg_in_world", registered, fault)


def _watch_meshes(module: ModuleType, coordinates: Coordinates, fault: Callable[[], None]) -> None:
    def built(_: object, mesh: DeviceMesh, *args: object, **kwargs: object) -> None:
        names, indices = mesh.mesh_dim_names, mesh.get_coordinate()
        if names and indices:
            coordinates.note_mesh(names, mesh.shape, indices)

    call_after(module.DeviceMesh, "__init__", built, fault)


def _watch_plans(module: ModuleType, coordinates: Coordinates, fault: Callable[[], None]) -> None:
    def parallelized(
        _: object, part: object = None, device_mesh: DeviceMesh | None = None, *args: object, **kwargs: object
    ) -> None:
        if device_mesh is not None and device_mesh.mesh_dim_names is None and device_mesh.ndim == 1:
            coordinates.note("parallelize_module", {"tp": device_mesh.get_local_rank()})

    call_after(module, "parallelize_module", parallelized, fault)


class Stage(Protocol):
    """What is read of a pipeline stage."""

    group: ProcessGroup
    group_rank: int


def _watch_stages(module: ModuleType, coordinates: Coordinates, fault: Callable[[], None]) -> None:
    from torch.distributed import get_process_group_ranks

    def built(_: object, stage: Stage, *args: object, **kwargs: object) -> None:
        members = sorted(get_process_group_ranks(stage.group))
        coordinates.note("pipeline stages", {"pp": stage.group_rank, "dp": replica_of(members)})

    call_after(module._PipelineStageBase, "__init__", built, fault)


class Grid(Protocol):
    """What is read of DeepSpeed's grid of pipeline, data and model parallelism."""

    def get_stage_id(self) -> int: ...
    def get_data_parallel_id(self) -> int: ...
    def get_slice_parallel_rank(self) -> int: ...


def _watch_deepspeed(module: ModuleType, coordinates: Coordinates, fault: Callable[[], None]) -> None:
    def built(_: object, grid: Grid, *args: object, **kwargs: object) -> None:
        tp, pp, dp = grid.get_slice_parallel_rank(), grid.get_stage_id(), grid.get_data_parallel_id()
        coordinates.note("DeepSpeed", {"tp": tp, "pp": pp, "dp": dp})

    call_after(module.PipelineParallelGrid, "__init__", built, fault)


MEGATRON = MappingProxyType(
    {
        "tp": "get_tensor_model_parallel_rank",
        "pp": "get_pipeline_model_parallel_rank",
        "dp": "get_data_parallel_rank",
        "cp": "get_context_parallel_rank",
        "ep": "get_expert_model_parallel_rank",
    }
)


def _watch_megatron(module: ModuleType, coordinates: Coordinates, fault: Callable[[], None]) -> None:
    def initialized(*args: object, **kwargs: object) -> None:
        found = {axis: int(getattr(module, MEGATRON[axis])()) for axis in AXES}
        coordinates.note("Megatron-core", found)

    call_after(module, "initialize_model_parallel", initialized, fault)
