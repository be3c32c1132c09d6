"""Which of a rank's pinned checkpoints is persisted next, so that all ranks persist the same steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.storage.manifest import Checkpoints, folder_of
from pulsetrain.checkpoint.storage.rank_files import file_stem

ANNOUNCEMENT_S = 0.05  # how often storage is asked whether rank 0 has begun a step


class Choice(NamedTuple):
    """What to persist now (None: nothing yet), and what not to persist any more."""

    chosen: SlotInfo | None
    overtaken: list[SlotInfo]


class StepChooser:
    """Rank 0 chooses the oldest step that the script asked for, else the newest. Other ranks follow it.

    A rank follows a step once rank 0 has written its table of it. So all ranks persist the same steps,
    however slow storage is for each of them.
    """

    def __init__(
        self, checkpoints: Checkpoints, poll_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoints, self._clock = checkpoints, clock
        self._look_every_s = max(poll_s, ANNOUNCEMENT_S)
        self._look_again = 0.0
        self._announced: set[tuple[int, int, int]] = set()  # see `_save`

    def choose(self, rank: int, waiting: Sequence[SlotInfo]) -> Choice:
        """From the rank's pinned checkpoints, oldest first; there is at least one."""
        chosen = self._requested(waiting) if rank == 0 else self._announced_one(waiting)
        periodic = [info for info in waiting if not info.durable]
        overtaken = [info for info in periodic if chosen and info.generation < chosen.generation]
        overtaken += periodic[:-2]  # the newest two may still be announced
        return Choice(chosen, list(dict.fromkeys(overtaken)))

    @staticmethod
    def _requested(waiting: Sequence[SlotInfo]) -> SlotInfo:
        return next((info for info in waiting if info.durable), waiting[-1])

    def _announced_one(self, waiting: Sequence[SlotInfo]) -> SlotInfo | None:
        """The oldest for which rank 0 has written its table."""
        now = self._clock()
        if now >= self._look_again:
            self._look_again = now + self._look_every_s
            for info in waiting:
                path = self._checkpoints.path(folder_of(info.step))
                stem = file_stem(info, 0, self._checkpoints.run)
                if f"{stem}.table.json" in self._checkpoints.storage.list(path):
                    self._announced.add(_save(info))
        return next((info for info in waiting if _save(info) in self._announced), None)


def _save(info: SlotInfo) -> tuple[int, int, int]:
    """What all ranks' parts of one checkpoint have in common."""
    return info.attempt, info.step, info.edition
