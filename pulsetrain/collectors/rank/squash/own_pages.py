"""Whether this process has written a page of a private mapping since it was mapped. The kernel knows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from pulsetrain.collectors.squash_layout import PAGE_BYTES

ENTRY_BYTES = 8
ENTRIES = 1 << 16  # read at once
STATE = 0b111 << 5  # of the highest byte: present, swapped, of a file (Linux, admin-guide/mm/pagemap)
OWN = (0b100 << 5, 0b010 << 5)


def any_own(address: int, nbytes: int, path: str = "/proc/self/pagemap") -> bool:
    """Whether a page of this range is the process's own. True where the host does not say.

    `address` and `nbytes` are whole pages.
    """
    try:
        return any(bool((states == own).any()) for states in _states(address, nbytes, path) for own in OWN)
    except OSError:
        return True


def _states(address: int, nbytes: int, path: str) -> Iterator[np.ndarray]:
    """Of each page the three bits that say where it is, in parts. Little-endian hosts."""
    at, end = address // PAGE_BYTES, (address + nbytes) // PAGE_BYTES
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while at < end:
            data = os.pread(fd, min(ENTRIES, end - at) * ENTRY_BYTES, at * ENTRY_BYTES)
            if not data or len(data) % ENTRY_BYTES:
                raise OSError(f"{path} says nothing of page {at}")
            yield np.frombuffer(data, np.uint8)[ENTRY_BYTES - 1 :: ENTRY_BYTES] & STATE
            at += len(data) // ENTRY_BYTES
    finally:
        os.close(fd)
