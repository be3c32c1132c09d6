"""torch.distributed.checkpoint in Pulsetrain's format: each side reads what the other wrote.

With `PulsetrainWriter`, ``dcp.save`` and ``dcp.async_save`` write deduplicated, checksummed, atomically
committed checkpoints. With `PulsetrainReader`, ``dcp.load`` and DCP's own tools read them at any parallel
shape, and those that `Checkpointer` and the agent wrote too. Objects other than tensors are stored as DCP's
bytes.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import time
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from pulsetrain.checkpoint.memory.layout import (
    Entry,
    Layout,
    Nested,
    Plain,
    TreeNode,
    aligned,
    decode_values,
    encode_values,
)
from pulsetrain.checkpoint.memory.slots import first_of_history, payload_offset
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import (
    MANIFEST,
    Blob,
    Checkpoints,
    Manifest,
    Segment,
    Table,
    folder_of,
)
from pulsetrain.checkpoint.storage.tensor_index import TensorIndex
from pulsetrain.core.errors import CheckpointError, UsageError
from pulsetrain.core.json import JsonObject

Metadatum: TypeAlias = TensorStorageMetadata | BytesStorageMetadata

_STEM, _PACK, _TABLE = "dcp-rank-", ".pack", ".table.json"
OBJECT = "object"  # the dtype of an entry that holds DCP's bytes


class PulsetrainWriter(StorageWriter):
    """Writes one step: a pack and a table for each rank, the manifest by the coordinator at the end.

    Each save has files of its own. So a step that is saved again stays as it was until the new one is whole.
    A step counts as one of the newest attempt that is committed there. One that ranks with a `Checkpointer`
    have committed is not replaced: `finish` raises `CheckpointError`.
    """

    def __init__(self, storage: str, job: str, step: int) -> None:
        """Raises `UsageError` for a `step` below 0."""
        super().__init__()
        self._checkpoints = Checkpoints(open_storage(storage), job)
        if step < 0:
            raise UsageError(f"step {step}: allowed: 0 or more")
        self._step = step
        self._rank = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """`checkpoint_id` says the step, see `validate_checkpoint_id`. Raises `UsageError` otherwise."""
        if checkpoint_id is not None:
            self._step = _step_of_id(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Newer versions of DCP name this rank in `kwargs`. The process group knows it in all versions."""
        self._rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the pack, then the table. Host tensors are written from where they are."""
        contents = [(item, _content(item, planner)) for item in plan.items]
        entries, tree, offset = [], [], 0
        for number, (item, data) in enumerate(contents):
            entries.append(_entry(item, offset, len(data)))
            tree.append([item.index.fqn, {"t": number}])
            offset = aligned(offset + len(data))
        head = Layout(entries=tuple(entries), tree={"d": tree}).encode()
        values = encode_values([])
        begin = payload_offset(len(head), len(values))
        parts = [(0, memoryview(head + values))]
        parts += [(begin + e.offset, d) for e, (_, d) in zip(entries, contents, strict=True) if e.bytes]
        segments = [Segment(offset=o, bytes=len(d), hash=xxhash.xxh3_128_hexdigest(d)) for o, d in parts]
        stem = f"{_STEM}{self._rank:05d}-{uuid.uuid4().hex[:12]}"
        file = f"{folder_of(self._step)}/{stem}{_PACK}"
        self._checkpoints.storage.put(self._checkpoints.path(file), [d for _, d in parts])
        table = Table(
            rank=self._rank,
            layout_bytes=len(head),
            values_bytes=len(values),
            payload_bytes=offset,
            segments=tuple(segments),
        )
        self._put_json(stem + _TABLE, {"file": file, "table": table.as_json()})
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [
                WriteResult(index=item.index, size_in_bytes=len(data), storage_data=stem)
                for item, data in contents
            ]
        )
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: join the tables of the ranks that have written something, in their order in the
        process group. From here on the step exists, and what it was before is removed."""
        self._refuse_to_replace()
        newest = next(iter(self._checkpoints.committed(newest=1)), None)
        tables: dict[int, Table] = {}
        blobs: dict[str, Blob] = {}
        written = 0
        for rank, stem in enumerate(of_rank[0].storage_data for of_rank in results if of_rank):
            path = f"{folder_of(self._step)}/{stem}{_TABLE}"
            raw = json.loads(self._checkpoints.storage.read(self._checkpoints.path(path)))
            table, offset = dataclasses.replace(Table.parse(raw["table"]), rank=rank), 0
            tables[rank] = table
            for segment in table.segments:
                blobs.setdefault(segment.hash, Blob(file=raw["file"], offset=offset, bytes=segment.bytes))
                offset += segment.bytes
            written += offset
        manifest = Manifest(
            job=self._checkpoints.job,
            step=self._step,
            attempt=newest.attempt if newest else 0,
            edition=first_of_history(newest.edition) if newest else 0,
            world=len(tables),
            created_ns=time.time_ns(),
            written_bytes=written,
            tables=tables,
            blobs=blobs,
        )
        path = self._checkpoints.path(f"{folder_of(self._step)}/{MANIFEST}")
        self._checkpoints.storage.put(path, [manifest.encode()])
        self._remove_replaced(frozenset(manifest.files))

    def _refuse_to_replace(self) -> None:
        """Raise where the step is another writer's. Its agents would wait for a manifest of their own."""
        there = self._checkpoints.manifest(self._step)
        if there is not None and not all(Path(file).name.startswith(_STEM) for file in there.files):
            raise CheckpointError(
                f"step {self._step} of job {self._checkpoints.job} was saved by a Checkpointer and is not "
                "replaced: save another step, or under another job"
            )

    def _remove_replaced(self, own: frozenset[str]) -> None:
        """Remove packs of saves of this step that it replaces, or that were broken off, and their tables.

        `own` are those of this save. A pack that a committed step refers to stays.
        """
        folder = folder_of(self._step)
        names = self._checkpoints.storage.list(self._checkpoints.path(folder))
        packs = {
            f"{folder}/{name}" for name in names if name.startswith(_STEM) and name.endswith(_PACK)
        } - own
        needed = {file for m in self._checkpoints.committed() for file in m.files} if packs else set()
        for pack in packs - needed:
            for file in (pack.removesuffix(_PACK) + _TABLE, pack):
                self._checkpoints.storage.remove(self._checkpoints.path(file))

    def storage_meta(self) -> StorageMeta | None:
        return None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """A path whose last part is the step's number, with or without `step-` before it."""
        return _is_step_id(checkpoint_id)

    def _put_json(self, name: str, value: JsonObject) -> None:
        path = self._checkpoints.path(f"{folder_of(self._step)}/{name}")
        self._checkpoints.storage.put(path, [json.dumps(value).encode()])


class PulsetrainReader(StorageReader):
    """Reads one committed step, by default the newest. `bytes_read` counts what this process read.

    Of tensors whose names begin with one of `may_differ`, the first rank's part is read where ranks have
    saved different values.
    """

    def __init__(
        self, storage: str, job: str, step: int | None = None, *, may_differ: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._may_differ = may_differ
        self._checkpoints = Checkpoints(open_storage(storage), job)
        self._step = step
        self._index: TensorIndex | None = None

    @property
    def bytes_read(self) -> int:
        return self._index.bytes_read if self._index else 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """As that of `PulsetrainWriter`."""
        if checkpoint_id is not None:
            self._step = _step_of_id(checkpoint_id)
        self._index = None

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Every tensor with its stored boxes, and plain values as DCP's bytes."""
        entries: dict[str, Metadatum] = {}
        for name, stored in self.index.tensors.items():
            if stored.dtype == OBJECT:
                entries[name] = BytesStorageMetadata()
                continue
            entries[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=getattr(torch, stored.dtype)),
                size=torch.Size(stored.shape),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(b.start), sizes=torch.Size(b.size))
                    for b in stored.boxes
                ],
            )
        entries.update({name: BytesStorageMetadata() for name in self._values() if name not in entries})
        return Metadata(
            state_dict_metadata=entries,
            planner_data={name: (name,) for name in entries},
            storage_data={},
            storage_meta=StorageMeta(),
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Nothing to do: no file is kept open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill each item of the plan, with one stored box in memory at a time."""
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes(name))
                continue
            at = item.storage_index.offset or (0,) * len(item.storage_offsets)
            start = tuple(a + b for a, b in zip(at, item.storage_offsets, strict=True))
            target = planner.resolve_tensor(item).detach()
            data = self.index.read(name, start, tuple(item.lengths))
            if data:
                stored = getattr(torch, self.index.tensors[name].dtype)
                target.copy_(torch.frombuffer(bytearray(data), dtype=stored).view(target.shape))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_step_id(checkpoint_id)

    @property
    def index(self) -> TensorIndex:
        """The step's tensors. Raises `CheckpointError` where it is not committed."""
        if self._index is None:
            checkpoints = self._checkpoints
            newest = next(iter(checkpoints.committed(newest=1)), None)
            manifest = newest if self._step is None else checkpoints.manifest(self._step)
            if manifest is None:
                raise CheckpointError(f"job {checkpoints.job}: step {self._step} is not committed")
            self._index = TensorIndex(checkpoints, manifest, may_differ=self._may_differ)
        return self._index

    def _values(self) -> dict[str, Plain]:
        """Plain values by dotted name, from the first rank that has them."""
        named: dict[str, Plain] = {}
        for layout, values in self.index.layouts.values():
            _name_values(layout.tree, (), decode_values(values), named)
        return named

    def _bytes(self, name: str) -> io.BytesIO:
        if name in self.index.tensors:
            return io.BytesIO(self.index.read(name))
        stream = io.BytesIO()
        torch.save(self._values()[name], stream)
        stream.seek(0)
        return stream


def export_dcp(
    storage: str, job: str, folder: Path, step: int | None = None, *, may_differ: Sequence[str] = ()
) -> int:
    """Write a committed step, by default the newest, as a folder that all of DCP's tools read.

    Returns the step. The whole state is in memory meanwhile, as it is with those tools. Raises
    `CheckpointError`. `may_differ` is as for `PulsetrainReader`.
    """
    reader = PulsetrainReader(storage, job, step, may_differ=may_differ)
    state: dict[str, Nested] = {}
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # DCP warns that there is only one process
        dcp_save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    return reader.index.manifest.step


def _is_step_id(checkpoint_id: str | os.PathLike[str]) -> bool:
    return re.fullmatch(r"(?:step-)?[0-9]+", Path(checkpoint_id).name) is not None


def _step_of_id(checkpoint_id: str | os.PathLike[str]) -> int:
    """The step that the last part of a path says. Raises `UsageError` where it says none."""
    if not _is_step_id(checkpoint_id):
        raise UsageError(
            f"checkpoint {checkpoint_id}: allowed: a path that ends in 12 or step-12, for step 12"
        )
    return int(Path(checkpoint_id).name.removeprefix("step-"))


def _content(item: WriteItem, planner: SavePlanner) -> memoryview:
    """The bytes of one item. A device tensor is copied to the host here."""
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        assert isinstance(data, io.BytesIO), "DCP resolves objects to bytes"
        return data.getbuffer()
    assert isinstance(data, torch.Tensor), "DCP resolves tensors to tensors"
    flat = data.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def _entry(item: WriteItem, offset: int, size: int) -> Entry:
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return Entry(name=name, dtype=OBJECT, shape=(size,), offset=offset, bytes=size)
    chunk = item.tensor_data.chunk
    return Entry(
        name=name,
        dtype=str(item.tensor_data.properties.dtype).removeprefix("torch."),
        shape=tuple(chunk.sizes),
        offset=offset,
        bytes=size,
        at=tuple(chunk.offsets),
        whole=tuple(item.tensor_data.size),
    )


def _name_values(
    node: TreeNode, path: tuple[Nested, ...], values: list[Plain], out: dict[str, Plain]
) -> None:
    ((kind, body),) = node.items()
    if kind == "v":
        out.setdefault(".".join(map(str, path)), values[body])
    elif kind in "dlu":
        for key, child in body if kind == "d" else enumerate(body):
            _name_values(child, (*path, key), values, out)
