"""How one rank's step goes at this moment, read from its ring without a lock: for who must not disturb it.

A second reader beside `ring.RingReader`; it looks at the status page and the groups' cells alone, so that
asking a thousand times a second costs nothing that counts.
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
    """Of one rank. Times are ns of `time.perf_counter_ns` (CLOCK_MONOTONIC)."""

    def __init__(self, ring_fd: int) -> None:
        """Keeps a mapping, not the descriptor. Raises `CorruptData` where it is no ring."""
        self._words = memoryview(mmap.mmap(ring_fd, MEMBERS_AT, prot=mmap.PROT_READ)).cast("q")
        if self._words[W_MAGIC] != MAGIC:
            raise CorruptData(f"descriptor {ring_fd} is no ring")

    @property
    def step_start_ns(self) -> int:
        """When the step under way began; 0 before the first."""
        return self._words[W_STEP_START]

    @property
    def last_step(self) -> int:
        """The newest completed step; -1: none."""
        return self._words[W_LAST_STEP]

    @property
    def communicating(self) -> bool:
        """An operation of some process group is in flight."""
        cells = range(min(self._words[W_GROUPS], MAX_GROUPS))
        first = GROUPS_AT // 8 + G_OP
        return any(self._words[first + cell * GROUP_WORDS] for cell in cells)
