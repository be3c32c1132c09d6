"""Loading a committed checkpoint into a job of another shape: other TP, PP, DP, world size, or one process.

Parameters and optimizer state are found by their global names and read by the part that each rank holds now,
or sent by a rank that read them for several. What is not a tensor of the model (learning rates, schedulers,
data position) comes from saved rank 0. Random generators stay as they are: they belong to a rank of the old
shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from pulsetrain.checkpoint.memory import layout as layouts
from pulsetrain.checkpoint.statetree import (
    collect,
    layout_of,
    local,
    optimizer_names,
    optimizer_parameters,
)
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment, Table
from pulsetrain.checkpoint.storage.shards import readers
from pulsetrain.checkpoint.storage.tensor_index import TensorIndex
from pulsetrain.core.errors import CheckpointError


def load_resharded(
    storage: str,
    job: str,
    state: Mapping[str, Any],
    *,
    step: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[int, int]:
    """Fill `state` (as `Checkpointer` takes it) from the newest committed step, or from `step`.

    With a process `group` (all its ranks call this; gloo), what several of its ranks need is read by one of
    them and sent to the others. Returns the step and the bytes that this process read from storage. Raises
    `CheckpointError` where there is no such step, or a tensor that `state` needs is not in it or has another
    global shape; `CorruptData` for damaged bytes.
    """
    checkpoints = Checkpoints(open_storage(storage), job)
    index = TensorIndex(checkpoints, _manifest(checkpoints, step))
    if group is not None:
        with index.rehearsal() as wanted:
            _load(index, state)
        exchange(index, wanted, group)
    _load(index, state)
    return index.manifest.step, index.bytes_read


def _load(index: TensorIndex, state: Mapping[str, Any]) -> None:
    trees = _trees(index)
    with torch.no_grad():
        for key, value in state.items():
            if isinstance(value, torch.optim.Optimizer):
                _load_optimizer(key, value, state, index, trees)
            elif isinstance(value, torch.nn.Module | torch.Tensor):
                _fill(index, {key: value})
            elif hasattr(value, "load_state_dict") and key in trees[0]:
                value.load_state_dict(trees[0][key])
            elif key in trees[0]:
                state[key] = trees[0][key]  # type: ignore[index]  # numbers live in a mutable mapping


def exchange(index: TensorIndex, wanted: Mapping[str, Segment], group: dist.ProcessGroup) -> None:
    """Give `index` what it shares with other ranks of the group: read by one, which has least to read so far,
    and sent to the others in an order that is the same for all."""
    me = dist.get_rank(group)
    needs: list[dict[str, int]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(needs, {h: s.bytes for h, s in wanted.items()}, group=group)
    tables = [
        Table(
            rank=rank,
            layout_bytes=0,
            values_bytes=0,
            payload_bytes=0,
            segments=tuple(Segment(offset=0, bytes=n, hash=h) for h, n in need.items()),
        )
        for rank, need in enumerate(needs)
    ]
    chosen = readers(tables, {rank: str(rank) for rank in range(len(needs))})
    for content in sorted(chosen):
        ranks = [rank for rank, need in enumerate(needs) if content in need]
        reader = int(chosen[content])
        if len(ranks) < 2 or me not in ranks:
            continue
        if me == reader:
            data = index.fetch(wanted[content])
            for other in ranks:
                if other != me:
                    dist.send(
                        torch.frombuffer(bytearray(data), dtype=torch.uint8), group=group, group_dst=other
                    )
        else:
            target = torch.empty(wanted[content].bytes, dtype=torch.uint8)
            dist.recv(target, group=group, group_src=reader)
            data = target.numpy().tobytes()
        index.give(content, data)


def _manifest(checkpoints: Checkpoints, step: int | None) -> Manifest:
    found = (
        checkpoints.manifest(step) if step is not None else next(iter(checkpoints.committed(newest=1)), None)
    )
    if found is None:
        have = ", ".join(str(m.step) for m in checkpoints.committed()) or "none"
        raise CheckpointError(f"job {checkpoints.job}: step {step} is not committed; committed: {have}")
    return found


def _trees(index: TensorIndex) -> dict[int, dict[str, Any]]:
    """Each saved rank's state with None where a tensor stands."""
    trees = {}
    for rank, (layout, values) in index.layouts.items():
        tensors = [_Nothing()] * len(layout.entries)
        trees[rank] = layouts.rebuild(layout.tree, tensors, layouts.decode_values(values))
    return trees


class _Nothing:
    """Stands where a tensor was."""

    def numpy(self) -> None:
        return None


def _fill(index: TensorIndex, part: Mapping[str, Any]) -> None:
    """Every tensor of `part` from its stored boxes, in place."""
    leaves = collect(part)
    for entry, tensor in zip(layout_of(part, leaves).entries, leaves.tensors, strict=True):
        _read_into(index, entry, local(tensor.detach()))


def _read_into(index: TensorIndex, entry: layouts.Entry, target: torch.Tensor) -> None:
    stored = index.tensors.get(entry.name)
    start, size, whole = entry.box
    if stored is None:
        raise CheckpointError(f"checkpoint of step {index.manifest.step} has no tensor {entry.name}")
    if (stored.dtype, stored.shape) != (entry.dtype, whole):
        raise CheckpointError(
            f"{entry.name}: saved as {stored.dtype} {stored.shape}, wanted as {entry.dtype} {whole}"
        )
    data = index.read(entry.name, start, size)
    if data:
        target.copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))


def _load_optimizer(
    key: str,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    index: TensorIndex,
    trees: Mapping[int, Mapping[str, Any]],
) -> None:
    """State tensors as the parameters are sharded now, settings from the rank that saved the same
    parameter."""
    names = optimizer_names(state)[key]
    parameters = optimizer_parameters(optimizer)
    filled: dict[int, dict[str, Any]] = {}
    for number, parameter in enumerate(parameters):
        prefix = f"{key}.state.{names[number]}."
        kinds = [n.removeprefix(prefix) for n in index.tensors if n.startswith(prefix)]
        filled[number] = {k: _state_tensor(index, prefix + k, parameter) for k in kinds}
    groups = _settings(key, optimizer, trees)
    optimizer.load_state_dict({"state": {n: s for n, s in filled.items() if s}, "param_groups": groups})


def _state_tensor(index: TensorIndex, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """One state tensor: a shard where the parameter is one and the state has its shape, whole otherwise."""
    stored = index.tensors[name]
    dtype = getattr(torch, stored.dtype)
    sharded = isinstance(parameter, DTensor) and stored.shape == tuple(parameter.shape)
    if not sharded:
        value = torch.empty(stored.shape, dtype=dtype, device=_home(stored.shape, parameter))
        _fill_named(index, name, value)
        return value
    assert isinstance(parameter, DTensor), "only a DTensor is sharded"
    shard = torch.empty_like(local(parameter.detach()), dtype=dtype)
    whole = DTensor.from_local(
        shard,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    _fill_named(index, name, whole)
    return whole


def _home(shape: tuple[int, ...], parameter: torch.Tensor) -> torch.device:
    """Step counters live on the CPU, the rest beside the parameter."""
    return parameter.device if shape else torch.device("cpu")


def _fill_named(index: TensorIndex, name: str, tensor: torch.Tensor) -> None:
    leaves = collect({"x": tensor})
    (entry,) = layout_of({"x": tensor}, leaves).entries
    start, size, _ = entry.box
    data = index.read(name, start, size)
    if data:
        target = local(tensor)
        target.copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))


def _settings(
    key: str, optimizer: torch.optim.Optimizer, trees: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Parameter groups with the saved settings, and the parameters that they have here."""
    saved = trees[0][key]["param_groups"]
    live = optimizer.state_dict()["param_groups"]
    if len(saved) != len(live):
        raise CheckpointError(f"{key}: saved with {len(saved)} parameter groups, has {len(live)}")
    return [{**group, **old, "params": group["params"]} for group, old in zip(live, saved, strict=True)]
