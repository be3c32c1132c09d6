"""The memory by which ranks that share a device hand on updates, as the agent sees it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from dataclasses import dataclass

from pulsetrain.collectors import squash_layout as layout


@dataclass(frozen=True, kw_only=True)
class SquashUse:
    """What a rank did so far: updates taken over, those that all compared, those computed by need alone.

    `in_place`: of those taken over, how many the root computed in pages that this rank shows.
    """

    taken_over: int
    in_place: int
    compared: int
    alone: int
    waited_ns: int


class SquashMemory:
    """Tells ranks which of them share a device, and reads why one of them stopped.

    `fd` is the memory, which ranks inherit. Local ranks from 62 on never squash. `weighs`: ranks measure
    whether an optimizer's updates are worth handing over, and compute them all where they are not.
    """

    def __init__(self, every: int, *, weighs: bool = True) -> None:
        self.fd = os.memfd_create("pulsetrain-squash", os.MFD_CLOEXEC)
        self._every, self.weighs, self._group = every, weighs, 0
        os.ftruncate(self.fd, layout.size_bytes())
        self._memory = mmap.mmap(self.fd, layout.REGIONS_AT)
        self._words = memoryview(self._memory).cast("q")

    def reset(self) -> None:
        """Give all pages back. No rank may use the memory meanwhile."""
        os.ftruncate(self.fd, layout.REGIONS_AT)  # cells stay: another thread may look at them
        os.ftruncate(self.fd, layout.size_bytes())
        self._memory[:] = bytes(layout.REGIONS_AT)

    def group(self, groups: Collection[Collection[int]]) -> None:
        """Let the members of each group, local ranks, squash. All others do not."""
        self._group += 1
        masks = dict.fromkeys(range(layout.MAX_RANKS), 0)
        for members in groups:
            if len(members) > 1 and max(members) < layout.MAX_RANKS:
                masks |= dict.fromkeys(members, sum(1 << member for member in members))
        for local_rank, mask in masks.items():
            at = layout.page_at(local_rank) // 8
            self._words[at + layout.W_MASK] = 0
            self._words[at + layout.W_EVERY] = self._every
            self._words[at + layout.W_WEIGHS] = self.weighs
            self._words[at + layout.W_GROUP] = self._group
            self._words[at + layout.W_MASK] = mask

    def stopped(self, local_rank: int) -> str:
        """Why a rank has stopped, as JSON. "" where it has not."""
        return self._text(local_rank, layout.W_STOPPED, layout.TEXT_AT)

    def left_out(self, local_rank: int) -> str:
        """Which optimizer of a root all compute, as it is not worth handing over. JSON, "" for none."""
        return self._text(local_rank, layout.W_LEFT, layout.LEFT_AT)

    def _text(self, local_rank: int, length_word: int, text_at: int) -> str:
        if local_rank >= layout.MAX_RANKS:
            return ""
        at = layout.page_at(local_rank)
        length = self._words[at // 8 + length_word]
        return self._memory[at + text_at : at + text_at + length].decode(errors="replace")

    def use(self, local_rank: int) -> SquashUse:
        """What a rank did."""
        at = layout.page_at(local_rank) // 8
        words = self._words
        return SquashUse(
            taken_over=words[at + layout.W_TAKEN_OVER],
            in_place=words[at + layout.W_IN_PLACE],
            compared=words[at + layout.W_COMPARED],
            alone=words[at + layout.W_ALONE],
            waited_ns=words[at + layout.W_WAITED],
        )

    def close(self) -> None:
        """Close the memory."""
        if self.fd >= 0:
            self._words.release()
            self._memory.close()
            os.close(self.fd)
            self.fd = -1
