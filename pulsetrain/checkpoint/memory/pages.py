"""Faults in the pages of shared memory, and counts those that are not there yet."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Callable

import numpy as np

from pulsetrain.checkpoint.memory.slots import PAGE
from pulsetrain.core.errors import MemoryShort

_CHUNK_BYTES = 64 << 20  # between two looks at the memory that is left
_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels refuse it and pages fault in one by one


def absent_bytes(region: mmap.mmap, start: int = 0, size: int | None = None) -> int:
    """How much memory it takes to write these bytes. 0 where the kernel does not say."""
    first = start // PAGE * PAGE
    size = (len(region) if size is None else start + size) - first
    here = np.zeros(-(-size // PAGE), dtype=np.uint8)
    failed = ctypes.CDLL(None).mincore(
        _address(region, first), ctypes.c_size_t(size), ctypes.c_void_p(here.ctypes.data)
    )
    return 0 if failed else PAGE * (len(here) - int(np.count_nonzero(here & 1)))


def fault_in(region: mmap.mmap, check: Callable[[int, int], None]) -> None:
    """Fault all pages in without the GIL. `check` is called with the start and the size of each part before.

    Raises `MemoryShort` where the kernel has no more.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for start in range(0, len(region), _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, len(region) - start)
        check(start, size)
        if not libc.madvise(_address(region, start), ctypes.c_size_t(size), _MADV_POPULATE_WRITE):
            continue
        if ctypes.get_errno() == errno.ENOMEM:
            raise MemoryShort(f"the kernel has no memory for {size} bytes more")
        return


def _address(region: mmap.mmap, start: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof((ctypes.c_char * len(region)).from_buffer(region)) + start)
