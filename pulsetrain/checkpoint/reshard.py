"""Loads a committed checkpoint into a job of another shape: other TP, PP, DP, world size, or one process.

Parameters and optimizer state are identified by their global names. Each rank reads the part that it holds
now, or gets it from a rank that reads it for several. What is not a tensor of the model (learning rates,
schedulers, data position) comes from saved rank 0. Random generators stay as they are, because they belong to
ranks of the old shape.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from pulsetrain.checkpoint.memory import layout as layouts
from pulsetrain.checkpoint.optimizers import optimizer_names, optimizer_parameters
from pulsetrain.checkpoint.sharding import local, sharded_like
from pulsetrain.checkpoint.state_restore import keep_types
from pulsetrain.checkpoint.statetree import collect, layout_of
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment, Table
from pulsetrain.checkpoint.storage.shards import readers
from pulsetrain.checkpoint.storage.tensor_index import TensorIndex
from pulsetrain.core.errors import CheckpointError
from pulsetrain.core.progress import progress


def load_resharded(
    storage: str,
    job: str,
    state: Mapping[str, object],
    *,
    step: int | None = None,
    group: dist.ProcessGroup | None = None,
    show_progress: bool = False,
) -> tuple[int, int]:
    """Fill `state` (as `Checkpointer` takes it) from the newest committed step, or from `step`.

    With a process `group` of backend gloo, whose ranks must all call this, content that several of its ranks
    need is read by one of them and sent to the others. Returns the step and the bytes that this process read
    from storage. `show_progress` shows on standard error how far this process has come: give it on one rank.

    Raises `CheckpointError` where there is no such step, or a tensor that `state` needs is missing or has
    another global shape. Raises `CorruptData` for damaged bytes.
    """
    checkpoints = Checkpoints(open_storage(storage), job)
    index = TensorIndex(checkpoints, _manifest(checkpoints, step))
    wanted: Mapping[str, Segment] = {}
    if group is not None or show_progress:
        with index.planning() as wanted:
            _load(index, state)
    with _shown(index, wanted) if show_progress else contextlib.nullcontext():
        if group is not None:
            exchange(index, wanted, group)
        _load(index, state)
    return index.manifest.step, index.bytes_read


@contextlib.contextmanager
def _shown(index: TensorIndex, wanted: Mapping[str, Segment]) -> Iterator[None]:
    """Show how much of what is wanted has come."""
    total = sum(segment.bytes for segment in wanted.values())
    with progress(f"Loading step {index.manifest.step}", total=total, unit="bytes") as index.report:
        yield


class Kind(Protocol):
    """Element type and global shape of a saved tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class SavedState(Protocol):
    """A saved state, whatever ranks it was sharded over."""

    @property
    def step(self) -> int: ...
    @property
    def tensors(self) -> Mapping[str, Kind]: ...
    def read(self, name: str, start: tuple[int, ...] = ..., size: tuple[int, ...] | None = ...) -> bytes:
        """The raw elements of a part, by default of the whole tensor."""
        ...


@runtime_checkable
class TakesParts(Protocol):
    """A part of the state that reads its tensors by itself, as those of `pulsetrain.elastic.split_state` do.

    `kinds` has what was saved below the entry's key, and `read` fills a tensor with what a name has.
    """

    def take_parts(
        self,
        kinds: Mapping[str, Kind],
        read: Callable[[str, torch.Tensor], None],
        saved: Mapping[str, layouts.Nested],
    ) -> None: ...


def load_state(saved: SavedState, state: Mapping[str, object], tree: Mapping[str, layouts.Nested]) -> None:
    """Fill `state`: tensors as they are sharded now, all else from the `tree` of one saved rank.

    Raises `CheckpointError` where a tensor is missing or has another global shape.
    """
    with torch.no_grad():
        for key, value in state.items():
            if isinstance(value, torch.optim.Optimizer):
                _load_optimizer(key, value, state, saved, tree)
            elif isinstance(value, torch.nn.Module | torch.Tensor):
                _fill(saved, {key: value})
            elif isinstance(value, TakesParts) and key in tree:
                _give_parts(key, value, saved, tree[key])
            elif hasattr(value, "load_state_dict") and key in tree:
                value.load_state_dict(tree[key])
            elif key in tree:
                state[key] = tree[key]  # type: ignore[index]  # numbers live in a mutable mapping


def _load(index: TensorIndex, state: Mapping[str, object]) -> None:
    load_state(index, state, _tree(index))


def exchange(index: TensorIndex, wanted: Mapping[str, Segment], group: dist.ProcessGroup) -> None:
    """Give `index` the content that other ranks of the group need too.

    Of those that need it, the rank with least to read so far reads it and sends it to the others. The order
    is the same for all ranks.
    """
    this_rank = dist.get_rank(group)
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
        if len(ranks) < 2 or this_rank not in ranks:
            continue
        if this_rank == reader:
            data = index.fetch(wanted[content])
            for other in ranks:
                if other != this_rank:
                    dist.send(
                        torch.frombuffer(bytearray(data), dtype=torch.uint8), group=group, group_dst=other
                    )
        else:
            target = torch.empty(wanted[content].bytes, dtype=torch.uint8)
            dist.recv(target, group=group, group_src=reader)
            data = target.numpy().tobytes()
        index.give(content, data)


def _manifest(checkpoints: Checkpoints, step: int | None) -> Manifest:
    manifest = (
        checkpoints.manifest(step) if step is not None else next(iter(checkpoints.committed(newest=1)), None)
    )
    if manifest is None:
        have = ", ".join(str(m.step) for m in checkpoints.committed()) or "none"
        raise CheckpointError(f"job {checkpoints.job}: step {step} is not committed; committed: {have}")
    return manifest


def _tree(index: TensorIndex) -> dict[str, layouts.Nested]:
    """The state of saved rank 0 without its tensors."""
    layout, values = index.layouts[0]
    tensors = [_NoTensor()] * len(layout.entries)
    tree: dict[str, layouts.Nested] = layouts.rebuild(layout.tree, tensors, layouts.decode_values(values))
    return tree


class _NoTensor:
    """Takes the place of a tensor that is not read."""

    def numpy(self) -> None:
        return None


def _fill(index: SavedState, part: Mapping[str, object]) -> None:
    """Fill every tensor of `part` in place from its stored boxes."""
    leaves = collect(part)
    for entry, tensor in zip(layout_of(part, leaves).entries, leaves.tensors, strict=True):
        _read_into(index, entry, local(tensor.detach()))


def _read_into(index: SavedState, entry: layouts.Entry, target: torch.Tensor) -> None:
    stored = index.tensors.get(entry.name)
    start, size, whole = entry.box
    if stored is None:
        raise CheckpointError(f"checkpoint of step {index.step} has no tensor {entry.name}")
    if (stored.dtype, stored.shape) != (entry.dtype, whole):
        raise CheckpointError(
            f"{entry.name}: saved as {stored.dtype} {stored.shape}, wanted as {entry.dtype} {whole}"
        )
    data = index.read(entry.name, start, size)
    if data:
        target.copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))


def _give_parts(key: str, value: TakesParts, saved: SavedState, tree: Mapping[str, layouts.Nested]) -> None:
    """Let an entry read what it holds now, by the names of its tensors."""

    def read(name: str, tensor: torch.Tensor) -> None:
        (entry,) = layout_of({"x": tensor}, collect({"x": tensor})).entries
        _read_into(saved, dataclasses.replace(entry, name=f"{key}.{name}"), tensor)

    prefix = f"{key}."
    kinds = {name.removeprefix(prefix): k for name, k in saved.tensors.items() if name.startswith(prefix)}
    value.take_parts(kinds, read, tree)


def _load_optimizer(
    key: str,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, object],
    index: SavedState,
    tree: Mapping[str, layouts.Nested],
) -> None:
    """Load state tensors as the parameters are sharded now, and settings from saved rank 0."""
    names = optimizer_names(state)[key]
    parameters = optimizer_parameters(optimizer)
    filled: dict[int, dict[str, torch.Tensor]] = {}
    for number, parameter in enumerate(parameters):
        prefix = f"{key}.state.{names[number]}."
        kinds = [n.removeprefix(prefix) for n in index.tensors if n.startswith(prefix)]
        filled[number] = {k: _state_tensor(index, prefix + k, parameter) for k in kinds}
    groups = _settings(key, optimizer, tree)
    loaded = {n: s for n, s in filled.items() if s}
    optimizer.load_state_dict({"state": loaded, "param_groups": groups})
    keep_types(optimizer, parameters, loaded)


def _state_tensor(index: SavedState, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """One state tensor. It is sharded like the parameter where it has the parameter's global shape."""
    stored = index.tensors[name]
    dtype = getattr(torch, stored.dtype)
    sharded = isinstance(parameter, DTensor) and stored.shape == tuple(parameter.shape)
    if not sharded:
        value = torch.empty(stored.shape, dtype=dtype, device=_device(stored.shape, parameter))
        _fill_named(index, name, value)
        return value
    assert isinstance(parameter, DTensor), "only a DTensor is sharded"
    shard = torch.empty_like(local(parameter.detach()), dtype=dtype)
    whole = sharded_like(parameter, shard)
    _fill_named(index, name, whole)
    return whole


def _device(shape: tuple[int, ...], parameter: torch.Tensor) -> torch.device:
    """Step counters are on the CPU, the rest where the parameter is."""
    return parameter.device if shape else torch.device("cpu")


def _fill_named(index: SavedState, name: str, tensor: torch.Tensor) -> None:
    leaves = collect({"x": tensor})
    (entry,) = layout_of({"x": tensor}, leaves).entries
    start, size, _ = entry.box
    data = index.read(name, start, size)
    if data:
        target = local(tensor)
        target.copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))


def _settings(
    key: str, optimizer: torch.optim.Optimizer, tree: Mapping[str, layouts.Nested]
) -> list[layouts.Nested]:
    """Parameter groups with the saved settings and the parameters of this rank."""
    saved = tree[key]["param_groups"]
    live = optimizer.state_dict()["param_groups"]
    if len(saved) != len(live):
        raise CheckpointError(f"{key}: saved with {len(saved)} parameter groups, has {len(live)}")
    return [{**group, **old, "params": group["params"]} for group, old in zip(live, saved, strict=True)]
