"""Ranks without torch that save parts of tensors, and ask for other parts."""

import dataclasses

import numpy as np

from pulsetrain.checkpoint.memory.arena import ArenaWriter
from pulsetrain.checkpoint.memory.layout import Entry, Layout, aligned, encode_values
from pulsetrain.checkpoint.memory.slots import Header
from pulsetrain.checkpoint.resharding import mailbox

WHOLE = {
    "model.matrix": np.arange(48, dtype=np.float32).reshape(8, 6),
    "model.bias": np.arange(5, dtype=np.float64),
    "optimizer.state.matrix.step": np.float32(7.0),
}


def rows(rank: int, ranks: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Start and size of each part where the matrix is split by rows, as FSDP does."""
    size = -(-8 // ranks)
    first = min(8, rank * size)
    return {"model.matrix": ((first, 0), (min(size, 8 - first), 6))}


def columns(rank: int, ranks: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The same where it is split by columns, as tensor parallelism does."""
    size = 6 // ranks
    return {"model.matrix": ((0, rank * size), (8, size))}


def layout_of(parts, names=tuple(WHOLE)) -> Layout:
    """The layout of a rank that has these parts, and all else whole."""
    entries, offset = [], 0
    for name in names:
        array = np.asarray(WHOLE[name])
        at, size = parts.get(name, ((), array.shape))
        count = int(np.prod(size)) * array.dtype.itemsize
        entries.append(
            Entry(
                name=name,
                dtype=str(array.dtype),
                shape=tuple(size),
                offset=offset,
                bytes=count,
                at=at,
                whole=array.shape if name in parts else (),
            )
        )
        offset = aligned(offset + count)
    return Layout(entries=tuple(entries), tree={"d": [[e.name, {"t": i}] for i, e in enumerate(entries)]})


def header_of(layout: Layout, rank: int, step: int, *, world: int, attempt: int = 0) -> tuple[Header, bytes]:
    """The header of a slot, and the bytes that it begins with."""
    head, values = layout.encode(), encode_values([step])
    header = Header(
        step=step,
        attempt=attempt,
        rank=rank,
        world=world,
        layout_bytes=len(head),
        values_bytes=len(values),
        payload_bytes=layout.payload_bytes,
        shard=layout.shard,
    )
    return header, head + values


def content(entry: Entry) -> bytes:
    """What the tensor's part has to be."""
    start, size, _ = entry.box
    part = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
    return np.ascontiguousarray(np.asarray(WHOLE[entry.name])[part]).tobytes()


def save(fd: int, layout: Layout, rank: int, step: int, *, world: int, attempt: int = 0, add=0, pinned=False):
    """Publish a rank's parts. `add` makes the content of whole tensors differ. `pinned`: it is persisted."""
    header, head = header_of(layout, rank, step, world=world, attempt=attempt)
    header = dataclasses.replace(header, pinned=pinned)
    writing = ArenaWriter(fd).begin(header)
    writing.bytes[: len(head)] = head
    payload = writing.bytes[header.total_bytes - header.payload_bytes :]
    for entry in layout.entries:
        data = bytearray(content(entry))
        if add and not entry.whole:
            data[0] = add
        payload[entry.offset : entry.offset + entry.bytes] = data
    return writing.commit()


def ask(
    fd: int, layout: Layout, rank: int, step: int, *, world: int, attempt: int = 1, timeout_s: float = 30
):
    """Ask the agent for parts and publish them. Returns the content of each tensor."""
    writer = ArenaWriter(fd)
    assert mailbox.read_offer(writer).step == step
    header, head = header_of(layout, rank, step, world=world, attempt=attempt)
    writing = writer.begin(header)
    writing.bytes[: len(head)] = head
    mailbox.ask(writer, writing, timeout_s=timeout_s)
    writing.commit()
    payload = writing.bytes[header.total_bytes - header.payload_bytes :]
    return {e.name: bytes(payload[e.offset : e.offset + e.bytes]) for e in layout.entries}


def wanted(layout: Layout):
    """What `ask` must return."""
    return {entry.name: content(entry) for entry in layout.entries}
