"""A state that every rank has saved alike, from whichever rank's memory on this node has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot

Found = tuple[Snapshot, memoryview]
"""Whose copy it is, and its bytes."""


class AnyReplica:
    """Looks through the arenas of this node's ranks, then through its replicas of other nodes' ranks.

    Only checkpoints whose script said that they are replicated count.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._arenas: dict[int, ArenaReader] = {}
        self._lock = Lock()

    def attach(self, rank: int, arena: ArenaReader) -> None:
        """Look into this arena too."""
        with self._lock:
            self._arenas[rank] = arena

    def detach(self, rank: int) -> None:
        """Look into it no more."""
        with self._lock:
            self._arenas.pop(rank, None)

    @contextmanager
    def reading(self, step: int, attempt: int) -> Iterator[Found | None]:
        """The state of `step` that `attempt` saved, unchanged until the block ends. None: it is not here.

        Its checksum was not compared.
        """
        found = self._in_arenas(step, attempt)
        if found is not None:
            arena, info = found
            try:
                yield Snapshot.of(info), arena.view(info)
            finally:
                arena.end_sending(info)
            return
        rank = next((s.rank for s in self._replicas.list() if _matches(s, step, attempt)), -1)
        with self._replicas.reading(rank, step, attempt) as replica:
            yield replica

    def _in_arenas(self, step: int, attempt: int) -> tuple[ArenaReader, SlotInfo] | None:
        with self._lock:
            arenas = list(self._arenas.values())
        for arena in arenas:
            for info in arena.published():
                if _matches(info, step, attempt) and arena.begin_sending(info):
                    return arena, info
        return None


def _matches(saved: Snapshot | SlotInfo, step: int, attempt: int) -> bool:
    return bool(saved.replicated) and (saved.step, saved.attempt) == (step, attempt)
