"""Blocks of a replica that this node does not copy: they stay in the arenas of its own ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.blocks import Span
from pulsetrain.checkpoint.memory.slots import SlotInfo


class SharedBlocks:
    """The blocks that one replica shares with ranks of this node.

    They can be read until such a rank overwrites a slot because it has no other: see `intact`.
    """

    def __init__(self, parts: Sequence[tuple[ArenaReader, SlotInfo, Sequence[Span]]]) -> None:
        """The slot of each part was shared before, by `ArenaReader.begin_sharing`."""
        self._parts = parts

    @property
    def intact(self) -> bool:
        """No rank has begun to overwrite any of them."""
        return all(arena.still(info) for arena, info, _ in self._parts)

    def copy_into(self, target: memoryview) -> bool:
        """Copy each block to its offset in `target`. False where a rank overwrote one meanwhile.

        Releases the GIL, unlike a copy between memoryviews.
        """
        into = np.frombuffer(target, dtype=np.uint8)
        for arena, info, spans in self._parts:
            source = np.frombuffer(arena.view(info), dtype=np.uint8)
            for at, size in spans:
                np.copyto(into[at : at + size], source[at : at + size])
        return self.intact

    def release(self) -> None:
        """Stop sharing: the ranks may overwrite the slots as usual. Call it once."""
        for arena, info, _ in self._parts:
            arena.end_sharing(info)
