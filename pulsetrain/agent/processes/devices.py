"""The devices of a node that ranks take turns on. Their locks are bytes of a file that has no name."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from pulsetrain.collectors.reading.device_words import DeviceWords
from pulsetrain.collectors.reading.squash_words import SquashMemory
from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.device_sharing import place

log = structlog.get_logger()

POLL_S = 0.01


class SharingRank(Protocol):
    """A rank that may share a device."""

    @property
    def rank(self) -> int: ...
    @property
    def code(self) -> int | None: ...
    @property
    def device(self) -> DeviceWords: ...
    @property
    def coordinates(self) -> Mapping[str, int] | None: ...


class SharedDevices:
    """Which rank of a node takes turns on which device. `fd` is the file that ranks lock.

    `number` is how many devices the ranks share, 0: each has its own. `squash` is by what those of a device
    compute an optimizer's update once, None: each computes it.
    """

    def __init__(self, squash: SquashMemory | None = None) -> None:
        self.squash = squash
        self._squashes = squash is not None
        self.fd = os.memfd_create("pulsetrain-devices", os.MFD_CLOEXEC)
        self.number = 0
        self._lock = threading.Lock()  # each command has a thread of its own
        self._known: dict[int, Mapping[str, int]] = {}
        self._shape = (0, 0)  # the world size and the program by which they are known
        self._placed_by: dict[int, Mapping[str, int]] = {}  # the coordinates by which ranks were placed last
        self._too_early = False  # it is not known yet who holds which shard, so that nobody squashes

    def share(self, ranks: Sequence[SharingRank], devices: int, *, dry_run: bool = False) -> dict[int, int]:
        """Let `ranks` take turns on so many devices. 0, or one for each rank: none is shared.

        Returns the device of each rank, nothing where none is shared. Raises `UsageError` where the ranks
        cannot do that. Then, and with `dry_run`, nothing changes.
        """
        with self._lock:
            placed = {} if devices in (0, len(ranks)) else self._place(ranks, devices)
            if dry_run:
                return placed
            self.number = devices if placed else 0
            self._placed_by = dict(self._known)
            for rank in ranks:
                wanted = placed.get(rank.rank, -1)
                if rank.device.device != wanted:
                    rank.device.order(wanted)
            self._group(ranks, placed)
        return placed

    def _group(self, ranks: Sequence[SharingRank], placed: Mapping[int, int]) -> None:
        """Let those of each device squash. `ranks` are in the order of their local ranks."""
        groups: dict[int, list[int]] = defaultdict(list)
        for local_rank, rank in enumerate(ranks):
            if self._squashes and not self._too_early and rank.rank in placed:
                groups[placed[rank.rank]].append(local_rank)
        if self.squash is not None:
            self.squash.group(groups.values())

    def squash_no_more(self) -> None:
        """Replicas have differed, or could not take part. From now on each computes its own updates."""
        with self._lock:
            self._squashes = False
            self._group((), {})

    def begin(self, ranks: Sequence[SharingRank], devices: int, *, world_size: int, program: int) -> None:
        """Ranks are about to start. Those that cannot share so few devices get one each, and start.

        They are where they were in the mesh if they have as many others and run the same `program`.
        """
        if self.squash is not None and devices:
            self.squash.reset()
        if self._shape != (world_size, program):
            self._shape = (world_size, program)
            self._known.clear()
        self._too_early = any(rank.rank not in self._known for rank in ranks)
        self._share_or_not(ranks, devices)

    def look(self, ranks: Sequence[SharingRank], *, stepped: bool) -> None:
        """Place ranks anew once they have said where they are in the mesh, which they cannot before they run.

        Those that have done their first step (`stepped`) and have not said it are replicas of one shard.
        """
        if not self.number or not ranks:
            return
        said = {rank.rank: rank.coordinates for rank in ranks}
        moved = None not in said.values() and any(self._placed_by.get(n) != at for n, at in said.items())
        if moved or (self._too_early and (stepped or None not in said.values())):
            self._too_early = False
            self._share_or_not(ranks, self.number)

    def _share_or_not(self, ranks: Sequence[SharingRank], devices: int) -> None:
        try:
            self.share(ranks, devices)
        except UsageError as error:
            log.warning("devices_not_shared", error=str(error))
            self.share(ranks, 0)

    def _place(self, ranks: Sequence[SharingRank], devices: int) -> dict[int, int]:
        if devices > len(ranks):
            raise UsageError(f"devices = {devices}: this node runs {len(ranks)} ranks")
        refusing = [rank.rank for rank in ranks if rank.device.refused]
        if refusing:
            raise UsageError(
                f"rank {refusing[0]} uses process groups that work on a GPU: "
                "only ranks whose groups work on the host, as gloo's do, can share a device"
            )
        self._known |= {rank.rank: rank.coordinates for rank in ranks if rank.coordinates is not None}
        return place([rank.rank for rank in ranks], devices, self._known)

    def wait(self, ranks: Sequence[SharingRank], timeout_s: float) -> list[int]:
        """Wait until every rank that runs follows. Returns those that do not do so in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            late = [rank.rank for rank in ranks if rank.code is None and not rank.device.followed]
            if not late or time.monotonic() >= deadline_s:
                return late
            time.sleep(POLL_S)

    def close(self) -> None:
        """Close the files."""
        if self.squash is not None:
            self.squash.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
