"""One optimizer's cell and digests, as ranks that share a device see them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.squash.bell import Bell
from pulsetrain.collectors.squash_layout import DIGESTS_BYTES, MAX_TENSORS


def lives(pid: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Page:
    """The cells of all local ranks, and the page of this one."""

    def __init__(self, fd: int, local_rank: int) -> None:
        self.fd, self.local_rank = fd, local_rank
        self.memory = mmap.mmap(fd, layout.REGIONS_AT)
        self.words = memoryview(self.memory)[layout.page_at(local_rank) :][: layout.TEXT_AT].cast("q")

    def cell(self, root: int, optimizer: int) -> Cell:
        """The cell of a root's optimizer."""
        return Cell(self, root, optimizer)

    def stop(self, text: str) -> None:
        """Say for good why this rank squashes no more. The first reason stays."""
        if self.words[layout.W_STOPPED]:
            return
        data = text.encode()[: layout.TEXT_BYTES]
        at = layout.page_at(self.local_rank) + layout.TEXT_AT
        self.memory[at : at + len(data)] = data
        self.words[layout.W_STOPPED] = len(data)

    def leave_out(self, text: str) -> None:
        """Say that an optimizer is computed by all from now on. The first one stays."""
        if self.words[layout.W_LEFT]:
            return
        data = text.encode()[: layout.LEFT_BYTES]
        at = layout.page_at(self.local_rank) + layout.LEFT_AT
        self.memory[at : at + len(data)] = data
        self.words[layout.W_LEFT] = len(data)


class Cell:
    """What a root says of one optimizer's updates. `words` are those of `squash_layout`."""

    def __init__(self, page: Page, root: int, optimizer: int) -> None:
        at = layout.optimizer_at(root, optimizer)
        self.words = memoryview(page.memory)[at : at + layout.OPTIMIZER_BYTES].cast("q")
        self.to_sharers = Bell(page.memory, at + 8 * layout.C_TO_SHARERS)
        self.to_root = Bell(page.memory, at + 8 * layout.C_TO_ROOT)
        self.region_at = layout.region_at(root, optimizer)
        self._digests = mmap.mmap(page.fd, 2 * DIGESTS_BYTES, offset=self.region_at)

    @property
    def root_lives(self) -> bool:
        """Whether the root's process is there."""
        return lives(self.words[layout.C_PID])

    def write_digests(self, values: Sequence[int], *, after: bool) -> None:
        """Write digests from before or after an update."""
        if len(values) > MAX_TENSORS:
            raise ValueError(f"{len(values)} tensors")
        at = DIGESTS_BYTES if after else 0
        self._digests[at : at + 8 * len(values)] = np.asarray(values, "<i8").tobytes()
        self.words[layout.C_TENSORS_AFTER if after else layout.C_TENSORS] = len(values)

    def digests(self, *, after: bool) -> list[int]:
        """The digests that the root has written."""
        count = self.words[layout.C_TENSORS_AFTER if after else layout.C_TENSORS]
        at = DIGESTS_BYTES if after else 0
        return [int(value) for value in np.frombuffer(self._digests, "<i8", count, at)]

    def close(self) -> None:
        """Give the memory back."""
        self.words.release()
        self._digests.close()
