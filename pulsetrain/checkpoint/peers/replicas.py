"""Checkpoints of other nodes' ranks, in this node's memory."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pulsetrain.checkpoint.memory.blocks import blocks, checksum, digests
from pulsetrain.checkpoint.memory.slots import Header, SlotInfo, payload_offset, slots_for
from pulsetrain.checkpoint.peers.shared_blocks import Loan
from pulsetrain.core.errors import CorruptData


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What identifies and describes the bytes of one rank's checkpoint, wherever they are."""

    rank: int
    step: int
    attempt: int
    world: int
    layout_bytes: int
    values_bytes: int
    payload_bytes: int
    checksum: int

    @property
    def total_bytes(self) -> int:
        """Layout, values, padding and payload."""
        return payload_offset(self.layout_bytes, self.values_bytes) + self.payload_bytes

    @classmethod
    def of(cls, info: SlotInfo) -> Snapshot:
        """The description of a slot's content."""
        return cls(**{f.name: getattr(info, f.name) for f in dataclasses.fields(cls)})

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Snapshot:
        """From a frame. Raises `CorruptData`."""
        try:
            values = {f.name: int(raw[f.name]) for f in dataclasses.fields(cls)}
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"not a checkpoint description: {error!r}") from error
        if min(values["layout_bytes"], values["values_bytes"], values["payload_bytes"]) < 0:
            raise CorruptData("checkpoint description with a negative size")
        return cls(**values)

    def header(self) -> Header:
        """What an arena needs to take it in."""
        return Header(
            step=self.step,
            attempt=self.attempt,
            rank=self.rank,
            world=self.world,
            layout_bytes=self.layout_bytes,
            values_bytes=self.values_bytes,
            payload_bytes=self.payload_bytes,
        )


@dataclass(eq=False)
class _Replica:
    snapshot: Snapshot
    memory: mmap.mmap
    loan: Loan | None = None  # what is not in `memory`
    spoilt: bool = False  # what it borrowed is not what was saved any more
    readers: int = 0
    settling: Lock = field(default_factory=Lock)

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory)[: self.snapshot.total_bytes]

    @property
    def there(self) -> bool:
        """All of it can be had."""
        loan = self.loan
        return not self.spoilt and (loan is None or loan.intact)

    def settle(self) -> bool:
        """Bring what it borrows into its own memory; false where that is not what was saved any more."""
        with self.settling:
            if self.loan is not None:
                copied = self.loan.copy_into(self.view)
                found = digests(self.view, blocks(self.snapshot))
                self.spoilt = not copied or checksum(found) != self.snapshot.checksum
                self.release()
            return not self.spoilt

    def release(self) -> None:
        """Borrow no more."""
        loan, self.loan = self.loan, None
        if loan is not None:
            loan.end()


class Replicas:
    """The last checkpoints of each rank (four where it is small, one where it is large), and one spare
    buffer.

    Memory is reused, because faulting pages in costs more than the copy; never while somebody reads it. Of
    what is borrowed from ranks here the pages are never touched, and take no room, until somebody reads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[int, list[_Replica]] = {}
        self._spare: dict[int, mmap.mmap] = {}
        self._attempt, self._step = -1, -1

    def buffer(self, snapshot: Snapshot) -> mmap.mmap:
        """Memory to receive it in; give it to `put`, or to `give_back` where the transfer failed."""
        with self._lock:
            spare = self._spare.pop(snapshot.rank, None)
        if spare is not None and len(spare) >= snapshot.total_bytes:
            return spare
        return mmap.mmap(-1, max(1, snapshot.total_bytes))

    def give_back(self, rank: int, memory: mmap.mmap) -> None:
        """Keep a buffer for the next checkpoint of that rank."""
        with self._lock:
            self._spare[rank] = memory

    def put(self, snapshot: Snapshot, memory: mmap.mmap, loan: Loan | None = None) -> None:
        """Hold it, with what it borrows, unless it comes late: for a later step than that of the last
        `forget_after`, from an attempt before.

        What the rank saved for this step or later ones before is of a past that was rolled back.
        """
        keep = max(1, slots_for(snapshot.total_bytes) - 2)
        with self._lock:
            new = _Replica(snapshot, memory, loan)
            if snapshot.attempt < self._attempt and snapshot.step > self._step:
                new.release()
                self._spare[snapshot.rank] = memory
                return
            before = self._held.get(snapshot.rank, [])
            older = [r for r in before if r.snapshot.step < snapshot.step]
            kept = [*older, new][-keep:]
            self._held[snapshot.rank] = kept
            free = _unread(r for r in before if r not in kept)
            if free:
                self._spare[snapshot.rank] = free[-1].memory

    def list(self) -> tuple[Snapshot, ...]:
        """What is held."""
        with self._lock:
            return tuple(r.snapshot for replicas in self._held.values() for r in replicas if r.there)

    def forget_after(self, step: int, attempt: int) -> None:
        """Drop every checkpoint of a later step: in `attempt` the whole job goes back to `step`."""
        with self._lock:
            self._attempt, self._step = attempt, step
            for rank, replicas in self._held.items():
                self._held[rank] = [r for r in replicas if r.snapshot.step <= step]
                _unread(r for r in replicas if r.snapshot.step > step)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            for replicas in self._held.values():
                _unread(replicas)
            self._held.clear()
            self._spare.clear()

    @contextmanager
    def reading(self, rank: int, step: int) -> Iterator[tuple[Snapshot, memoryview] | None]:
        """The newest replica of that rank and step, all of it in memory of its own, which stays as it is
        meanwhile; None where there is none, or what it borrowed is gone."""
        with self._lock:
            found = next((r for r in reversed(self._held.get(rank, [])) if r.snapshot.step == step), None)
            if found is not None:
                found.readers += 1
        try:
            yield (found.snapshot, found.view) if found is not None and found.settle() else None
        finally:
            if found is not None:
                with self._lock:
                    found.readers -= 1


def _unread(dropped: Iterable[_Replica]) -> list[_Replica]:
    """Those that nobody reads, which borrow no more; a reader ends a loan itself."""
    free = [replica for replica in dropped if not replica.readers]
    for replica in free:
        replica.release()
    return free
