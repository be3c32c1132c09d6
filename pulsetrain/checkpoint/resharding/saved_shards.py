"""What ranks have saved, as far as it is in this node's memory: in arenas and among replicas of others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import xxhash

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.blocks import blocks, checksum, digests
from pulsetrain.checkpoint.memory.layout import Entry, Layout, decode, element_bytes
from pulsetrain.checkpoint.memory.slots import Description, SlotInfo, payload_offset
from pulsetrain.checkpoint.peers.replicas import ANY, Replicas, Snapshot
from pulsetrain.checkpoint.storage.tensor_index import Slices
from pulsetrain.core.errors import CheckpointError, CorruptData

LAYOUTS = 64
"""that are kept decoded: of the ranks of a node and of those whose replicas it has"""


@dataclass(frozen=True, kw_only=True)
class SavedKey:
    """What one rank has saved: which of `world` ranks, in which attempt, as of which step."""

    rank: int
    step: int
    attempt: int
    world: int

    def fits(self, saved: Description) -> bool:
        """Whether this is it."""
        return (saved.rank, saved.step, saved.attempt, saved.world) == (
            self.rank,
            self.step,
            self.attempt,
            self.world,
        )


class SavedShard:
    """The bytes of one rank's checkpoint, and what they mean."""

    def __init__(self, saved: Description, data: memoryview, layout: Layout) -> None:
        """`layout` is what the first bytes of `data` say."""
        self.head = data[: saved.layout_bytes + saved.values_bytes]
        self.layout_bytes = saved.layout_bytes
        self.layout = layout
        self._payload = data[payload_offset(saved.layout_bytes, saved.values_bytes) :]

    def part(self, number: int, inside: Slices) -> bytes:
        """Elements of a tensor in row-major order. Raises `CheckpointError` for a part that it has not."""
        return part_of(self._content(number), self._entry(number), inside)

    def digest(self, number: int) -> str:
        """The hash of a tensor's bytes, as storage has it."""
        return xxhash.xxh3_128_hexdigest(self._content(number))

    def _entry(self, number: int) -> Entry:
        if not 0 <= number < len(self.layout.entries):
            raise CheckpointError(f"tensor {number} of {len(self.layout.entries)}")
        return self.layout.entries[number]

    def _content(self, number: int) -> memoryview:
        entry = self._entry(number)
        return self._payload[entry.offset : entry.offset + entry.bytes]


class SavedShards:
    """Looks through the arenas of this node's ranks, then through its replicas of other nodes' ranks.

    Arenas of ranks that no longer run here stay until the ranks that do have saved a newer step.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._arenas: dict[int, ArenaReader] = {}
        self._retired: dict[int, ArenaReader] = {}
        self._whole: set[SavedKey] = set()
        self._digests: dict[tuple[SavedKey, int], str] = {}
        self._layouts: dict[SavedKey, tuple[bytes, Layout]] = {}
        self._lock = Lock()

    def attach(self, rank: int, arena: ArenaReader) -> None:
        """Look into this arena too."""
        with self._lock:
            self._arenas[rank] = arena
            self._whole.clear()
            self._digests.clear()
            self._layouts.clear()

    def detach(self, rank: int) -> None:
        """Look into it no more."""
        with self._lock:
            self._arenas.pop(rank, None)

    def retire(self, rank: int, fd: int) -> None:
        """The rank runs here no more. Keep the shards in its arena `fd` for ranks of another world.

        Where it has none, `fd` is closed.
        """
        arena = ArenaReader(fd)
        with self._lock:
            self._arenas.pop(rank, None)
            _close(self._retired.pop(rank, None))
            if any(info.shard for info in arena.published()):
                self._retired[rank] = arena
            else:
                _close(arena)

    def reclaim(self, rank: int) -> int:
        """The arena of a rank that runs here again. -1: none is kept."""
        with self._lock:
            arena = self._retired.pop(rank, None)
        return -1 if arena is None else arena.fd

    def kept(self) -> list[SlotInfo]:
        """What ranks have saved that run here no more. Drops what has become old."""
        with self._lock:
            newest = [arena.newest for arena in self._arenas.values()]
            oldest = min((info.step if info is not None else -1 for info in newest), default=-1)
            for rank, arena in list(self._retired.items()):
                if all(info.step < oldest for info in arena.published()):
                    _close(self._retired.pop(rank))
            retired = list(self._retired.items())
        return [info for rank, arena in retired for info in arena.published() if info.rank == rank]

    def clear(self) -> None:
        """Forget what ranks have saved that run here no more."""
        with self._lock:
            for arena in self._retired.values():
                _close(arena)
            self._retired.clear()

    def digests(self, key: SavedKey, entries: Sequence[int]) -> list[str]:
        """A hash of the content of each of these tensors. Raises as `reading` does."""
        missing = [number for number in entries if (key, number) not in self._digests]
        if missing:
            with self.reading(key) as saved:
                self._digests |= {(key, number): saved.digest(number) for number in missing}
        return [self._digests[key, number] for number in entries]

    @contextmanager
    def reading(self, key: SavedKey) -> Iterator[SavedShard]:
        """What a rank has saved, compared with its checksum once.

        Raises `CheckpointError` where it is not here, `CorruptData` where it is damaged, or was overwritten
        before the block ended.
        """
        arena, info = self._find(key)
        if arena is not None and info is not None:
            self._verify(key, info, arena.view(info), info.checksum)
            yield self._shard(key, info, arena.view(info))
            if not arena.still(info):
                raise CorruptData(f"step {key.step} of rank {key.rank} was overwritten")
            return
        with self._replicas.reading(key.rank, key.step, key.attempt, world=key.world) as replica:
            if replica is None:
                raise CheckpointError(f"step {key.step} of rank {key.rank} is not here")
            snapshot, data = replica
            self._verify(key, snapshot, data, snapshot.checksum)
            yield self._shard(key, snapshot, data)

    @contextmanager
    def whole(
        self, rank: int, step: int, attempt: int, history: int = ANY
    ) -> Iterator[tuple[Snapshot, memoryview] | None]:
        """All bytes of what a rank has saved, from a replica or from an arena. None: it is not here."""
        with self._replicas.reading(rank, step, attempt, history=history) as replica:
            if replica is not None:
                yield replica
                return
        found = (
            (arena, info)
            for arena in self._arenas_of(rank)
            for info in arena.published()
            if info.rank == rank and Snapshot.of(info).matches(step, attempt, history=history)
        )
        arena, info = next(found, (None, None))
        yield None if arena is None or info is None else (Snapshot.of(info), arena.view(info))

    def _shard(self, key: SavedKey, saved: Description, data: memoryview) -> SavedShard:
        """What is at `data`. Its layout is decoded once, as long as it stays the same."""
        raw = bytes(data[: saved.layout_bytes])
        last = self._layouts.get(key)
        if last is None or last[0] != raw:
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            last = self._layouts[key] = raw, decode(raw)
        return SavedShard(saved, data, last[1])

    def _arenas_of(self, rank: int) -> list[ArenaReader]:
        with self._lock:
            return [a for a in (self._arenas.get(rank), self._retired.get(rank)) if a is not None]

    def _find(self, key: SavedKey) -> tuple[ArenaReader | None, SlotInfo | None]:
        arenas = self._arenas_of(key.rank)
        found = ((arena, info) for arena in arenas for info in arena.published() if key.fits(info))
        return next(found, (None, None))

    def _verify(self, key: SavedKey, saved: Description, data: memoryview, expected: int) -> None:
        if key in self._whole:
            return
        if checksum(digests(data, blocks(saved))) != expected:
            raise CorruptData(f"step {key.step} of rank {key.rank} does not have its checksum")
        self._whole.add(key)


def part_of(content: memoryview | bytes, entry: Entry, inside: Slices) -> bytes:
    """Elements of a saved tensor in row-major order. Raises `CheckpointError` for a part that it has not."""
    if len(inside) != len(entry.shape) or any(
        not 0 <= one.start <= one.stop <= length for one, length in zip(inside, entry.shape, strict=True)
    ):
        raise CheckpointError(f"{entry.name} of shape {entry.shape} has no part {inside}")
    data: npt.NDArray[np.void] = np.frombuffer(content, dtype=f"V{element_bytes(entry)}")
    return np.asarray(data.reshape(entry.shape)[inside]).tobytes()


def slices_of(raw: Sequence[Sequence[int]]) -> Slices:
    """Slices as a frame has them: pairs of first and end. Raises `CheckpointError`."""
    try:
        return tuple(slice(int(first), int(end)) for first, end in raw)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"not a part of a tensor: {raw!r}") from error


def _close(arena: ArenaReader | None) -> None:
    """Close the descriptor that `retire` was given."""
    if arena is not None:
        os.close(arena.fd)
