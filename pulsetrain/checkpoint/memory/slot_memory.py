"""The memory of an arena's slots: mapping them, growing them, and faulting their pages in.

Slots lie a terabyte apart in a sparse file, so that each grows without moving another.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from pulsetrain.checkpoint.memory.slots import PAGE
from pulsetrain.core.errors import CheckpointError, CorruptData

_STRIDE = 1 << 40
_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels refuse it and pages fault in one by one


class SlotMemory:
    """The mapped slots of one arena. Thread-safe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
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
        """At least `size` bytes of a slot, for writing. Raises `CheckpointError` where memory is short."""
        with self._growing:
            region = self._regions.get(slot)
            if region is not None and len(region) >= size:
                return region
            end = slot_offset(slot) + _whole_pages(size)
            try:
                if os.fstat(self._fd).st_size < end:
                    os.ftruncate(self._fd, end)
                region = self._map(slot, size)
            except OSError as error:
                raise CheckpointError(f"arena of {size} bytes: {error.strerror}") from error
            self._unpopulated.add(slot)
            return region

    def populate(self, slot: int) -> None:
        """Fault in all pages of a slot that was just grown, without the GIL. Nothing to do for others."""
        if slot in self._unpopulated:
            self._unpopulated.discard(slot)
            _populate(self._regions[slot])

    def _map(self, slot: int, size: int) -> mmap.mmap:
        region = mmap.mmap(self._fd, _whole_pages(size), offset=slot_offset(slot))
        self._regions[slot] = region
        return region


def slot_offset(slot: int) -> int:
    """Where the slot's bytes begin in the arena's file."""
    return (slot + 1) * _STRIDE


def _whole_pages(size: int) -> int:
    return max(PAGE, -(-size // PAGE) * PAGE)


def _populate(region: mmap.mmap) -> None:
    buffer = (ctypes.c_char * len(region)).from_buffer(region)
    libc = ctypes.CDLL(None)
    libc.madvise(
        ctypes.c_void_p(ctypes.addressof(buffer)), ctypes.c_size_t(len(region)), _MADV_POPULATE_WRITE
    )
