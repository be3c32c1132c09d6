"""Reads from a rank's ring how far its step is, for those who must not disturb it. Takes no lock.

A second reader beside `RingReader`. It reads only the status page and the groups' cells, so that asking a
thousand times a second costs little.
"""

from __future__ import annotations

import mmap

from pulsetrain.collectors.layout import (
    G_OP,
    GROUP_WORDS,
    GROUPS_AT,
    MAGIC,
    MAX_GROUPS,
    MEMBERS_AT,
    W_GROUPS,
    W_LAST_STEP,
    W_MAGIC,
    W_STEP_START,
)
from pulsetrain.core.errors import CorruptData


class StepProgress:
    """Progress of one rank. Times are ns of `time.perf_counter_ns` (CLOCK_MONOTONIC)."""

    def __init__(self, ring_fd: int) -> None:
        """Map the ring. The descriptor is not kept. Raises `CorruptData` if it is no ring."""
        self._words = memoryview(mmap.mmap(ring_fd, MEMBERS_AT, prot=mmap.PROT_READ)).cast("q")
        if self._words[W_MAGIC] != MAGIC:
            raise CorruptData(f"descriptor {ring_fd} is no ring")

    @property
    def step_start_ns(self) -> int:
        """When the current step began, 0 before the first."""
        return self._words[W_STEP_START]

    @property
    def last_step(self) -> int:
        """The newest completed step, -1: none."""
        return self._words[W_LAST_STEP]

    @property
    def communicating(self) -> bool:
        """Whether an operation of some process group is in flight."""
        cells = range(min(self._words[W_GROUPS], MAX_GROUPS))
        first = GROUPS_AT // 8 + G_OP
        return any(self._words[first + cell * GROUP_WORDS] for cell in cells)
