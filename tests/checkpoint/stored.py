"""Commits checkpoints of known arrays to a folder, without an agent."""

from pathlib import Path

import numpy as np
import torch
import xxhash

from pulsetrain.checkpoint.memory.layout import Entry, Layout, aligned, encode_values
from pulsetrain.checkpoint.memory.slots import payload_offset
from pulsetrain.checkpoint.statetree import collect, layout_of
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Blob, Checkpoints, Manifest, Segment, Table


def commit_arrays(
    folder: Path, shards: dict[int, list[tuple[str, np.ndarray, tuple, tuple]]], step: int = 1
) -> Checkpoints:
    """Commit a step of job j: for each rank (name, local array, start, global shape)."""
    ranks = {}
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
        layout = Layout(entries=tuple(entries), tree=tree)
        ranks[rank] = (layout, b"[]", [array.tobytes() for _, array, _, _ in parts])
    return _commit(folder, ranks, step)


def commit_states(folder: Path, states: dict[int, dict]) -> Checkpoints:
    """Commit step 1 of job j: for each rank a state as `Checkpointer` takes it."""
    ranks = {}
    for rank, state in states.items():
        leaves = collect(state)
        contents = [t.detach().contiguous().flatten().view(torch.uint8).numpy() for t in leaves.locals]
        values = encode_values(leaves.values)
        ranks[rank] = (layout_of(state, leaves), values, [one.tobytes() for one in contents])
    return _commit(folder, ranks)


def _commit(folder: Path, ranks: dict[int, tuple[Layout, bytes, list[bytes]]], step: int = 1) -> Checkpoints:
    of_step = f"step-{step:012}"
    storage = open_storage(str(folder))
    tables, blobs = {}, {}
    for rank, (layout, values, contents) in ranks.items():
        head = layout.encode()
        begin = payload_offset(len(head), len(values))
        pieces = [(0, head + values)]
        pieces += [(begin + e.offset, c) for e, c in zip(layout.entries, contents, strict=True) if e.bytes]
        segments, at = [], 0
        for start, data in pieces:
            digest = xxhash.xxh3_128_hexdigest(data)
            segments.append(Segment(offset=start, bytes=len(data), hash=digest))
            blobs.setdefault(digest, Blob(file=f"{of_step}/{rank}.pack", offset=at, bytes=len(data)))
            at += len(data)
        storage.put(f"j/{of_step}/{rank}.pack", [d for _, d in pieces])
        tables[rank] = Table(
            rank=rank,
            layout_bytes=len(head),
            values_bytes=len(values),
            payload_bytes=layout.payload_bytes,
            segments=tuple(segments),
        )
    manifest = Manifest(
        job="j",
        step=step,
        attempt=0,
        world=len(ranks),
        created_ns=0,
        written_bytes=0,
        tables=tables,
        blobs=blobs,
    )
    storage.put(f"j/{of_step}/manifest.json", [manifest.encode()])
    return Checkpoints(storage, "j")
