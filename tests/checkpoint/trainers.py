"""A rank without torch: writes states of known content into arenas, as the trainer does."""

import time

import numpy as np

from pulsetrain.checkpoint.memory.arena import ArenaWriter
from pulsetrain.checkpoint.memory.layout import Entry, Layout, aligned, encode_values
from pulsetrain.checkpoint.memory.slots import Header, SlotInfo, payload_offset


def arrays(rank: int, step: int, *, count: int = 4, size: int = 1000) -> dict[str, np.ndarray]:
    """Content that only this rank has, but for `shared`, which every rank has at that step, and `frozen`."""
    own = {f"w{i}": np.arange(size, dtype=np.float32) + 1000 * rank + step + i for i in range(count)}
    return {
        **own,
        "shared": np.full(size, step, dtype=np.float32),
        "frozen": np.arange(size, dtype=np.float32),
    }


def layout_for(tensors: dict[str, np.ndarray]) -> Layout:
    """Each array as one whole tensor."""
    entries, offset = [], 0
    for name, array in tensors.items():
        entries.append(
            Entry(name=name, dtype=str(array.dtype), shape=array.shape, offset=offset, bytes=array.nbytes)
        )
        offset = aligned(offset + array.nbytes)
    tree = {"d": [[name, {"t": i}] for i, name in enumerate(tensors)]}
    return Layout(entries=tuple(entries), tree=tree)


def save(
    fd: int,
    rank: int,
    step: int,
    *,
    world: int = 1,
    attempt: int = 0,
    edition: int = 0,
    durable: bool = False,
    replicated: bool = False,
    tensors: dict[str, np.ndarray] | None = None,
) -> SlotInfo | None:
    """Publish a state; pinned as the arena's agent asks for. None: every slot is pinned."""
    writer = ArenaWriter(fd)
    tensors = arrays(rank, step) if tensors is None else tensors
    layout = layout_for(tensors)
    head, values = layout.encode(), encode_values([step])
    every = writer.persist_every
    header = Header(
        step=step,
        attempt=attempt,
        edition=edition,
        rank=rank,
        world=world,
        layout_bytes=len(head),
        values_bytes=len(values),
        payload_bytes=layout.payload_bytes,
        pinned=durable or bool(every and step % every == 0),
        durable=durable,
        replicated=replicated,
    )
    writing = writer.begin(header)
    if writing is None:
        return None
    writing.bytes[: len(head) + len(values)] = head + values
    start = payload_offset(len(head), len(values))
    for entry, array in zip(layout.entries, tensors.values(), strict=True):
        at = start + entry.offset
        writing.bytes[at : at + entry.bytes] = array.tobytes()
    writing.blocked_ns = writing.copy_ns = 1000
    return writing.commit()


def content(fd: int, rank: int, step: int) -> bytes | None:
    """The bytes of a published, verified checkpoint."""
    arena = ArenaWriter(fd)
    info = arena.find(rank, step)
    return bytes(arena.view(info)) if info is not None and arena.verify(info) else None


def wait_until(condition, timeout_s: float = 50.0):
    """Poll a real process or thread; the value of `condition` once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)
    return value
