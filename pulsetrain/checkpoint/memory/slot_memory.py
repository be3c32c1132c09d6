"""The memory of an arena's slots: mapping them, growing them, and faulting their pages in.

Slots lie a terabyte apart in a sparse file, so that each grows without moving another.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading

from pulsetrain.checkpoint.memory.memory_left import MemoryLeft, check_left, memory_left
from pulsetrain.checkpoint.memory.pages import absent_bytes, fault_in
from pulsetrain.checkpoint.memory.slots import PAGE
from pulsetrain.core.errors import CheckpointError, CorruptData, MemoryShort

_STRIDE = 1 << 40


class SlotMemory:
    """The mapped slots of one arena. Thread-safe."""

    def __init__(self, fd: int, left: MemoryLeft = memory_left) -> None:
        self._fd, self._left = fd, left
        self._regions: dict[int, mmap.mmap] = {}
        self._unpopulated: set[int] = set()
        self._growing = threading.Lock()

    @property
    def unpopulated(self) -> frozenset[int]:
        """Slots that were grown and whose pages were not faulted in yet."""
        return frozenset(self._unpopulated)

    def region(self, slot: int, size: int) -> mmap.mmap:
        """At least `size` bytes of a slot, for reading. Raises `CorruptData` where the file is shorter."""
        region = self._regions.get(slot)
        if region is None or len(region) < size:
            end = os.fstat(self._fd).st_size
            if end < slot_offset(slot) + _whole_pages(size):
                raise CorruptData(f"arena slot {slot}: {size} bytes announced, file ends at {end}")
            region = self._map(slot, size)
        return region

    def grown(self, slot: int, size: int) -> mmap.mmap:
        """At least `size` bytes of a slot, for writing.

        Raises `MemoryShort` where less memory is left than it would take, `CheckpointError` where the file
        cannot grow.
        """
        with self._growing:
            region = self._regions.get(slot)
            if region is None or len(region) < size:
                region = self._map_grown(slot, size)
                self._unpopulated.add(slot)
            if slot in self._unpopulated:
                self._check_left(slot, region)
            return region

    def populate(self, slot: int) -> None:
        """Fault in all pages of a slot that was just grown, without the GIL. Nothing to do for others.

        Raises `MemoryShort` where others take the memory meanwhile.
        """
        with self._growing:
            if slot not in self._unpopulated:
                return
            self._unpopulated.discard(slot)
            region = self._regions[slot]
        try:
            fault_in(region, lambda start, size: self._check_part(region, start, size))
        except MemoryShort:
            self._unpopulated.add(slot)
            raise

    def give_back(self, slot: int) -> None:
        """Free the memory of a slot of which nothing is needed. Where the kernel refuses, it stays."""
        with self._growing, contextlib.suppress(OSError):
            self._forget(slot).madvise(mmap.MADV_REMOVE)

    def _check_left(self, slot: int, region: mmap.mmap) -> None:
        try:
            self._check_part(region, 0, len(region))
        except MemoryShort:
            self._forget(slot)  # a smaller checkpoint may still have room
            raise

    def _forget(self, slot: int) -> mmap.mmap:
        self._unpopulated.discard(slot)
        return self._regions.pop(slot)

    def _check_part(self, region: mmap.mmap, start: int, size: int) -> None:
        what = f"a checkpoint of {len(region) / 1e6:.1f} MB"
        check_left(what, absent_bytes(region, start, size), self._left)

    def _map_grown(self, slot: int, size: int) -> mmap.mmap:
        end = slot_offset(slot) + _whole_pages(size)
        try:
            if os.fstat(self._fd).st_size < end:
                os.ftruncate(self._fd, end)
            return self._map(slot, size)
        except OSError as error:
            raise CheckpointError(f"arena of {size} bytes: {error.strerror}") from error

    def _map(self, slot: int, size: int) -> mmap.mmap:
        region = mmap.mmap(self._fd, _whole_pages(size), offset=slot_offset(slot))
        self._regions[slot] = region
        return region


def slot_offset(slot: int) -> int:
    """Where the slot's bytes begin in the arena's file."""
    return (slot + 1) * _STRIDE


def _whole_pages(size: int) -> int:
    return max(PAGE, -(-size // PAGE) * PAGE)
