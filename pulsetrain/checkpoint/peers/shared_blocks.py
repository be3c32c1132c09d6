"""Parts of a replica that are not its own memory: they stand in the arenas of this node's ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.blocks import Span
from pulsetrain.checkpoint.memory.slots import SlotInfo


class Loan:
    """What one replica borrows. It holds until a rank needs the slot for want of another: `intact`."""

    def __init__(self, parts: Sequence[tuple[ArenaReader, SlotInfo, Sequence[Span]]]) -> None:
        """Each part's slot was lent before."""
        self._parts = parts

    @property
    def intact(self) -> bool:
        """No rank has begun to write over it."""
        return all(arena.still(info) for arena, info, _ in self._parts)

    def copy_into(self, target: memoryview) -> bool:
        """Copy each part to its place; false where a rank wrote over one meanwhile. Gives up the GIL, unlike
        a copy between memoryviews."""
        into = np.frombuffer(target, dtype=np.uint8)
        for arena, info, spans in self._parts:
            source = np.frombuffer(arena.view(info), dtype=np.uint8)
            for at, size in spans:
                np.copyto(into[at : at + size], source[at : at + size])
        return self.intact

    def end(self) -> None:
        """Give the slots back; once."""
        for arena, info, _ in self._parts:
            arena.end_loan(info)
