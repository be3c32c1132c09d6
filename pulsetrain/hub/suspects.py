"""Reads the stacks of the few ranks that would be at fault, again and again while a job stands still.

One report on all ranks says who stands elsewhere (`stacks`). Whether such a rank works, loops or holds its
GIL shows only over time. The first readings come each second, later ones seldom. Only time in which the hub
looked is counted: while it stood still, or its machine did, the job may have moved and stood again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsetrain.analytics.hangs.posture import Posture, Postures, StackSample
from pulsetrain.analytics.hangs.stacks import MAIN
from pulsetrain.analytics.hangs.thread_waits import helper, is_locked
from pulsetrain.core.clock import Clock
from pulsetrain.core.json import JsonObject
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.protocol.messages import Reply

NAME = "suspects"
TIMEOUT_S = 3.0
MOST_RANKS = 16  # of many suspects these are enough
LATE_S = 10.0  # no look is so long after the one before, unless the hub or its machine stood still
# The period of readings, by the time since the first. A reading costs its node 0.1 s of one core.
PERIODS_S: Sequence[tuple[float, float]] = ((6.0, 1.0), (60.0, 2.0), (600.0, 10.0), (float("inf"), 30.0))


class SuspectSource(Protocol):
    """A job whose agents can be asked for the stacks of some ranks."""

    async def read_stacks(self, timeout_s: float, *, ranks: Sequence[int] = ()) -> list[Reply]:
        """One reply of each node that runs one of `ranks`."""
        ...


class SuspectWatch(Protocol):
    """What the live watch needs of this module."""

    def consider(self, job: str, attempt: int, suspects: Sequence[int]) -> None:
        """Read the suspects if it is time. Without suspects what was read is forgotten."""
        ...

    def postures(self, job: str, attempt: int) -> Mapping[int, Posture]:
        """What the readings of this silence say, by rank."""
        ...


@dataclass
class _Memory:
    """The readings of one job in one silence. `counted_s`: how long it was looked at, up to `looked_s`."""

    attempt: int
    looked_s: float
    counted_s: float = 0.0
    read_s: float = -1e9
    postures: Postures = field(default_factory=Postures)
    reading: asyncio.Task[None] | None = None


class Suspects:
    """Readings of all jobs. All methods run on the hub's event loop and do not block."""

    def __init__(self, jobs: Mapping[str, SuspectSource], clock: Clock, background: TaskSupervisor) -> None:
        self._jobs, self._clock, self._background = jobs, clock, background
        self._memories: dict[str, _Memory] = {}

    def consider(self, job: str, attempt: int, suspects: Sequence[int]) -> None:
        """See `SuspectWatch`."""
        now_s = self._clock.monotonic_s()
        if not suspects:
            self._memories.pop(job, None)
            return
        memory = self._memories.get(job)
        if memory is None or memory.attempt != attempt:
            memory = self._memories[job] = _Memory(attempt=attempt, looked_s=now_s)
        passed_s, memory.looked_s = now_s - memory.looked_s, now_s
        memory.counted_s += passed_s if passed_s <= LATE_S else 0.0
        period_s = next(p for until_s, p in PERIODS_S if memory.counted_s < until_s)
        busy = memory.reading is not None and not memory.reading.done()
        if not busy and memory.counted_s - memory.read_s >= period_s:
            memory.read_s = memory.counted_s
            ranks = tuple(sorted(suspects)[:MOST_RANKS])
            memory.reading = self._background.once(NAME, self._read(self._jobs[job], memory, ranks))

    def postures(self, job: str, attempt: int) -> Mapping[int, Posture]:
        """See `SuspectWatch`."""
        memory = self._memories.get(job)
        return memory.postures.by_rank if memory is not None and memory.attempt == attempt else {}

    async def _read(self, job: SuspectSource, memory: _Memory, ranks: Sequence[int]) -> None:
        replies = await job.read_stacks(TIMEOUT_S, ranks=ranks)
        for sample in samples(replies, int(memory.counted_s * 1e9)):
            memory.postures.note(sample)


def samples(replies: Sequence[Reply], now_ns: int) -> list[StackSample]:
    """Return one sample for each rank whose main thread was read."""
    return [sample for reply in replies if not reply.error for sample in _samples(reply.data, now_ns)]


def _samples(data: JsonObject, now_ns: int) -> list[StackSample]:
    threads: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
    for stack in data.get("stacks", ()):
        for rank in stack["ranks"]:
            threads.setdefault(rank, []).append((str(stack["thread"]), tuple(stack["frames"])))
    details = data.get("details", {})
    made = []
    for rank, stacks in sorted(threads.items()):
        detail = details.get(str(rank), {})
        gil, place = str(detail.get("gil", "")), str(detail.get("place", ""))
        of_gil = next((frames for name, frames in stacks if name == gil), ())
        main = next((frames for name, frames in stacks if name == MAIN), None)
        if main is not None:
            made.append(
                StackSample(
                    rank=rank,
                    at_ns=now_ns,
                    frames=main,
                    gil=gil,
                    gil_frames=tuple(detail.get("gil_frames", of_gil)),
                    place=place,
                    helper=helper(stacks, place),
                    locked=is_locked(main, place),
                    idle_line=bool(detail.get("idle_line", True)),  # an agent of before does not say
                    device_line=bool(detail.get("device_line", False)),
                    cut=bool(detail.get("cut", False)),
                )
            )
    return made
