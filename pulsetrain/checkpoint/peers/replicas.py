"""Checkpoints of other nodes' ranks, in this node's memory."""

from __future__ import annotations

import dataclasses
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from pulsetrain.checkpoint.memory.blocks import Span, blocks, checksum, digests
from pulsetrain.checkpoint.memory.memory_left import MemoryLeft, check_left, memory_left
from pulsetrain.checkpoint.memory.pages import absent_bytes
from pulsetrain.checkpoint.memory.slots import (
    MAX_SLOTS,
    Description,
    Header,
    SlotInfo,
    history_of,
    slots_for,
)
from pulsetrain.checkpoint.peers.shared_blocks import SharedBlocks
from pulsetrain.core.errors import CorruptData, MemoryShort

ANY = -2
"""Any attempt, or any number of ranks."""


@dataclass(frozen=True, kw_only=True)
class Snapshot(Description):
    """What identifies and describes the bytes of one rank's checkpoint, wherever they are.

    `replicated` is as in the arena. An older agent leaves out what it does not know.
    """

    checksum: int
    replicated: int = 0

    @classmethod
    def of(cls, info: SlotInfo) -> Snapshot:
        """The description of a slot's content."""
        return cls(**{name: getattr(info, name) for name in _SNAPSHOT_FIELDS})

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Snapshot:
        """From a frame. Raises `CorruptData`."""
        values: dict[str, int] = {}
        for name in _SNAPSHOT_FIELDS:
            value = raw.get(name, 0 if name in _LATER else None)
            if not isinstance(value, int):
                raise CorruptData(f"not a checkpoint description: {name} = {value!r}")
            values[name] = value
        if min(values["layout_bytes"], values["values_bytes"], values["payload_bytes"]) < 0:
            raise CorruptData("checkpoint description with a negative size")
        return cls(**values)

    def matches(self, step: int, attempt: int = ANY, history: int = ANY, world: int = ANY) -> bool:
        """Whether it is of that step, and of that attempt, history and number of ranks.

        These count where they are not `ANY`.
        """
        if self.step != step or history not in (ANY, history_of(self.edition)):
            return False
        return attempt in (ANY, self.attempt) and world in (ANY, self.world)

    def as_json(self) -> dict[str, int]:
        """For a frame."""
        return {name: getattr(self, name) for name in _SNAPSHOT_FIELDS}

    def header(self) -> Header:
        """What an arena needs to receive it."""
        described = {field.name: getattr(self, field.name) for field in dataclasses.fields(Description)}
        return Header(**described, replicated=bool(self.replicated))


_LATER = ("replicated", "shard", "edition")
_SNAPSHOT_FIELDS = tuple(field.name for field in dataclasses.fields(Snapshot))


@dataclass(eq=False)
class _Replica:
    snapshot: Snapshot
    memory: mmap.mmap
    shared: SharedBlocks | None = None  # what is not in `memory`
    damaged: bool = False  # what it shared is no longer what was saved
    readers: int = 0
    completing: Lock = field(default_factory=Lock)

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory)[: self.snapshot.total_bytes]

    @property
    def available(self) -> bool:
        """Every byte of it can be read."""
        shared = self.shared
        return not self.damaged and (shared is None or shared.intact)

    def complete(self) -> bool:
        """Copy shared blocks into its own memory. False where they are no longer what was saved."""
        with self.completing:
            if self.shared is not None:
                copied = self.shared.copy_into(self.view)
                block_digests = digests(self.view, blocks(self.snapshot))
                self.damaged = not copied or checksum(block_digests) != self.snapshot.checksum
                self.release()
            return not self.damaged

    def release(self) -> None:
        """Share blocks no more."""
        shared, self.shared = self.shared, None
        if shared is not None:
            shared.release()


class Replicas:
    """The last checkpoints of each rank.

    Five checkpoints of a rank are kept where they are small, two where they are large. The oldest of them
    goes when the next one begins to arrive, because that takes its memory. Until then ranks of which the next
    one has arrived still have a step in common with the others. Memory is reused, because to fault in new
    pages costs more than the copy. It is never reused while somebody reads it. Pages of shared blocks are not
    touched before somebody reads the replica, so they take no memory.
    """

    def __init__(self, left: MemoryLeft = memory_left) -> None:
        """`left` says how much memory there is for what arrives."""
        self._left = left
        self._lock = Lock()
        self._replicas: dict[int, list[_Replica]] = {}
        self._spare: dict[int, mmap.mmap] = {}
        self._attempt, self._step = -1, -1
        self._world_attempt = -1
        self._arrived: Counter[int] = Counter()  # replicas of each rank that this world's attempt has saved

    def begin_world(self, attempt: int) -> None:
        """Replicas come from other nodes from now on. What no rank sends any more goes after a while."""
        with self._lock:
            self._world_attempt = attempt
            self._arrived.clear()

    def buffer(self, snapshot: Snapshot) -> mmap.mmap:
        """Memory to receive it in. Give it to `put`, or to `give_back` where the transfer failed.

        Where there is no spare one, and the rank has as many replicas as it may, it is that of the oldest.
        Raises `MemoryShort` where the kernel gives none.
        """
        with self._lock:
            spare = self._spare.pop(snapshot.rank, None) or self._take_oldest(snapshot)
        if spare is not None and len(spare) >= snapshot.total_bytes:
            return spare
        try:
            return mmap.mmap(-1, max(1, snapshot.total_bytes))
        except OSError as error:
            raise MemoryShort(f"a replica of {snapshot.total_bytes} bytes: {error.strerror}") from error

    def check_left(self, snapshot: Snapshot, memory: mmap.mmap, spans: Iterable[Span]) -> None:
        """Raises `MemoryShort` where less is left than these spans of the replica will take."""
        need = sum(absent_bytes(memory, at, size) for at, size in spans)
        check_left(f"the replica of step {snapshot.step} of rank {snapshot.rank}", need, self._left)

    def give_back(self, rank: int, memory: mmap.mmap) -> None:
        """Keep a buffer for the next checkpoint of that rank."""
        with self._lock:
            self._spare[rank] = memory

    def put(self, snapshot: Snapshot, memory: mmap.mmap, shared: SharedBlocks | None = None) -> None:
        """Keep a replica, and drop the rank's older ones that are too many.

        A replica that an earlier attempt sent late is dropped where its step is after that of the last
        `forget_after`. Replicas of the rank for this step or later ones are of a rolled back past: they go.
        """
        with self._lock:
            new = _Replica(snapshot, memory, shared)
            if snapshot.attempt < self._attempt and snapshot.step > self._step:
                new.release()
                self._spare[snapshot.rank] = memory
                return
            self._drop_another_worlds(snapshot)
            before = self._replicas.get(snapshot.rank, [])
            others = [r for r in before if _of_another_world(r.snapshot, snapshot)]
            older = [r for r in before if r not in others and r.snapshot.step < snapshot.step]
            kept = [*others, *[*older, new][-_most(snapshot) :]]
            self._replicas[snapshot.rank] = kept
            free = _release_unread(r for r in before if r not in kept)
            if free:
                self._spare[snapshot.rank] = free[-1].memory
            self._arrived[snapshot.rank] += snapshot.attempt >= self._world_attempt
            if min(self._arrived.values()) >= MAX_SLOTS:
                self._drop_not_sent(snapshot.step)

    def _drop_not_sent(self, step: int) -> None:
        """Drop what was saved before `step` by ranks of which this world has sent nothing here.

        Ranks that are sent here have saved so often since that their own memory has nothing from then. So
        nobody can go back there.
        """
        for rank in self._replicas.keys() - self._arrived.keys():
            gone = [r for r in self._replicas[rank] if r.snapshot.step < step]
            self._replicas[rank] = [r for r in self._replicas[rank] if r not in gone]
            _release_unread(gone)
        for rank in self._spare.keys() - self._arrived.keys():
            del self._spare[rank]

    def _take_oldest(self, new: Snapshot) -> mmap.mmap | None:
        """The memory of the rank's oldest replica, where it has as many as it may and nobody reads it."""
        replicas = self._replicas.get(new.rank, [])
        own = [r for r in replicas if not _of_another_world(r.snapshot, new)]
        if len(own) < _most(new):
            return None
        self._replicas[new.rank] = [r for r in replicas if r is not own[0]]
        free = _release_unread(own[:1])
        return free[0].memory if free else None

    def _drop_another_worlds(self, new: Snapshot) -> None:
        """What a world of another size saved goes once this world has saved a newer step."""
        for rank, replicas in self._replicas.items():
            gone = [r for r in replicas if _of_another_world(r.snapshot, new) and r.snapshot.step < new.step]
            self._replicas[rank] = [r for r in replicas if r not in gone]
            _release_unread(gone)

    def list(self) -> tuple[Snapshot, ...]:
        """The replicas that can be read."""
        with self._lock:
            return tuple(r.snapshot for replicas in self._replicas.values() for r in replicas if r.available)

    def forget_after(self, step: int, attempt: int) -> None:
        """Drop every checkpoint of a later step: in `attempt` the whole job goes back to `step`."""
        with self._lock:
            self._attempt, self._step = attempt, step
            for rank, replicas in self._replicas.items():
                self._replicas[rank] = [r for r in replicas if r.snapshot.step <= step]
                _release_unread(r for r in replicas if r.snapshot.step > step)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            for replicas in self._replicas.values():
                _release_unread(replicas)
            self._replicas.clear()
            self._spare.clear()

    @contextmanager
    def reading(
        self, rank: int, step: int, attempt: int = ANY, history: int = ANY, world: int = ANY
    ) -> Iterator[tuple[Snapshot, memoryview] | None]:
        """The newest replica of that rank and step, whole and unchanged until the block ends.

        Only of that attempt, history and number of ranks, where they are given. None where there is none, or
        where a block that it shared was overwritten.
        """
        with self._lock:
            replicas = reversed(self._replicas.get(rank, []))
            replica = next((r for r in replicas if r.snapshot.matches(step, attempt, history, world)), None)
            if replica is not None:
                replica.readers += 1
        try:
            whole = replica is not None and replica.complete()
            yield (replica.snapshot, replica.view) if replica is not None and whole else None
        finally:
            if replica is not None:
                with self._lock:
                    replica.readers -= 1


def _most(snapshot: Snapshot) -> int:
    """How many replicas of a rank there may be, of which the oldest makes room for the next one."""
    return max(1, slots_for(snapshot.total_bytes) - 2) + 1


def _of_another_world(old: Snapshot, new: Snapshot) -> bool:
    """Shards of a world of another size. A state that all ranks save alike is of no world."""
    return bool(old.shard and new.shard) and old.world != new.world


def _release_unread(dropped: Iterable[_Replica]) -> list[_Replica]:
    """Release the replicas that nobody reads, and return them. A reader releases its own."""
    free = [replica for replica in dropped if not replica.readers]
    for replica in free:
        replica.release()
    return free
