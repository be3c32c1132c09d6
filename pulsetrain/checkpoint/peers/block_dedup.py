"""Replicas share the blocks that the receiving node has already.

Data-parallel ranks save mostly identical bytes, so agents deduplicate:

1. The sender offers one digest per block.
2. The receiver reuses blocks that its own ranks saved for that step, and asks for the rest.
3. Only those are sent.

A reused block stays in the arena of the rank that saved it. That rank overwrites other slots first. The block
is copied when somebody reads the replica.
"""

from __future__ import annotations

import os
import re
import time
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from threading import Lock

import numpy as np
import numpy.typing as npt

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.blocks import DIGEST_BYTES, Span, blocks, digests
from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.peers.replicas import Snapshot
from pulsetrain.checkpoint.peers.shared_blocks import SharedBlocks

MAX_MISSING_SPANS = 4096  # where more are missing, everything is sent
_SAVE_WAIT_S = 0.25  # how long a rank that should save the same step soon is waited for
_POLL_S = (0.005, 0.04)  # first and longest pause between two looks


def worth_sharing(equal_bytes: int, total_bytes: int) -> bool:
    """Whether so many equal bytes repay an offer and waiting for a rank: from a quarter on."""
    return 4 * equal_bytes >= total_bytes


def merged_spans(spans: Sequence[Span], wanted: npt.NDArray[np.bool_]) -> list[Span]:
    """The wanted spans, with neighbours merged. `spans` follow each other without gaps."""
    runs = (run.span() for run in re.finditer(b"\x01+", wanted.tobytes()))
    ends = ((spans[first][0], sum(spans[end - 1])) for first, end in runs)
    return [(at, end - at) for at, end in ends if end > at]


def has_digests(data: memoryview, snapshot: Snapshot, offered: bytes, parts: Sequence[Span]) -> bool:
    """Whether the blocks of `data` that lie in `parts` have the digests that were offered."""
    spans = blocks(snapshot)
    indexes = np.flatnonzero(_covered(spans, parts)).tolist()
    wanted = (offered[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES] for i in indexes)
    return digests(data, [spans[i] for i in indexes]) == b"".join(wanted)


class BlockDedup:
    """Finds blocks of offered checkpoints in the arenas of this node's ranks. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = Lock()
        self._arenas: dict[int, ArenaReader] = {}
        self._similar: dict[tuple[int, int], bool] = {}  # (offered, own) rank -> shared much last time

    def attach(self, rank: int, arena_fd: int) -> None:
        """This rank runs here. The descriptor stays the caller's."""
        own = os.dup(arena_fd)
        arena = ArenaReader(own)
        weakref.finalize(arena, os.close, own)  # whoever still copies from it may finish
        with self._lock:
            self._arenas[rank] = arena

    def detach(self, rank: int) -> None:
        """The rank runs elsewhere."""
        with self._lock:
            self._arenas.pop(rank, None)

    def forget(self) -> None:
        """Another attempt begins: ranks may have other states."""
        with self._lock:
            self._similar.clear()

    def share(
        self, snapshot: Snapshot, offered: bytes, *, received: Sequence[Span] = ()
    ) -> tuple[SharedBlocks | None, list[Span]]:
        """The blocks of an offered checkpoint that ranks here have, and the spans that are missing.

        `offered` holds one digest per block. Blocks in `received` have arrived already. A rank that usually
        has the same content, and has not saved that step yet, is waited for a little.
        """
        spans, parts = blocks(snapshot), []
        missing = ~_covered(spans, received)
        if len(offered) != DIGEST_BYTES * len(spans):
            return None, merged_spans(spans, missing)
        for rank, arena, info in self._saved(snapshot):
            if not missing.any():
                break
            equal = _equal_blocks(offered, arena.digests(info))
            equal_bytes = sum(size for _, size in merged_spans(spans, equal))
            similar = worth_sharing(equal_bytes, snapshot.total_bytes)
            self._note_similar(snapshot.rank, rank, similar)
            reused = merged_spans(spans, equal & missing)
            if (
                similar and reused and arena.begin_sharing(info)
            ):  # a replica must not depend on a rank for little
                parts.append((arena, info, reused))
                missing &= ~equal
        shared, rest = SharedBlocks(parts) if parts else None, merged_spans(spans, missing)
        if len(rest) <= MAX_MISSING_SPANS:
            return shared, rest
        if shared is not None:
            shared.release()
        return None, [(0, snapshot.total_bytes)]

    def _saved(self, snapshot: Snapshot) -> Iterator[tuple[int, ArenaReader, SlotInfo]]:
        """The ranks here with a checkpoint of that step and size, after those that are expected have saved.

        Ranks that shared much last time come first.
        """
        deadline, (pause_s, longest_s) = self._clock() + _SAVE_WAIT_S, _POLL_S
        while True:
            with self._lock:
                arenas = list(self._arenas.items())
            saves = [(rank, arena, _of_size(arena, snapshot)) for rank, arena in arenas]
            expected = [rank for rank, _, infos in saves if infos and infos[0].step < snapshot.step]
            expected = [rank for rank in expected if self._similar.get((snapshot.rank, rank), True)]
            if not expected or self._clock() >= deadline:
                break
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        for rank in expected:  # do not wait for it again before it has saved in time once
            self._note_similar(snapshot.rank, rank, similar=False)
        for rank, arena, infos in sorted(saves, key=lambda s: not self._similar.get((snapshot.rank, s[0]))):
            yield from ((rank, arena, info) for info in infos if info.step == snapshot.step)

    def _note_similar(self, offered: int, own: int, similar: bool) -> None:
        with self._lock:
            self._similar[offered, own] = similar


def _covered(spans: Sequence[Span], parts: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Which of the spans lie whole in one of the parts. `spans` follow each other without gaps."""
    covered = np.zeros(len(spans), dtype=np.bool_)
    for at, size in parts:
        first = bisect_left(spans, at, key=itemgetter(0))
        covered[first : bisect_right(spans, at + size, key=sum)] = True
    return covered


def _of_size(arena: ArenaReader, snapshot: Snapshot) -> list[SlotInfo]:
    """The rank's checkpoints with a payload of that size, newest first."""
    return [info for info in arena.published() if info.payload_bytes == snapshot.payload_bytes]


def _equal_blocks(offered: bytes, own: bytes) -> npt.NDArray[np.bool_]:
    """Which blocks have equal digests. None of them where their numbers differ."""
    theirs = np.frombuffer(offered, dtype=np.int64).reshape(-1, 2)
    if len(own) != len(offered):
        return np.zeros(len(theirs), dtype=np.bool_)
    same: npt.NDArray[np.bool_] = (theirs == np.frombuffer(own, dtype=np.int64).reshape(-1, 2)).all(axis=1)
    return same
