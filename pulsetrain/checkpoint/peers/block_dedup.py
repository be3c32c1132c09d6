"""Content that a node's own ranks hold of another node's checkpoint: it is neither sent nor copied.

Data-parallel replicas have parameters and optimizer state in common, and often keep each other's replicas.
The node that sends a checkpoint offers a digest of each block; the one that takes it borrows the blocks that
a rank of its own has saved for the same step, and asks for the rest. What is borrowed stays in that rank's
arena, which writes over other slots first, and is copied when somebody wants the replica.
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
from pulsetrain.checkpoint.peers.shared_blocks import Loan

MOST_PARTS = 4096  # an answer that names more is not worth its length
_PATIENCE_S = 0.25  # a rank that is to have the same soon is waited for so long
_NAP_S = (0.005, 0.04)  # at first, and at last: each look costs a wake-up


def worthwhile(equal: int, total: int) -> bool:
    """So much is the same that offers, and waiting for a rank, are worth their time: a quarter."""
    return 4 * equal >= total


def joined(spans: Sequence[Span], wanted: npt.NDArray[np.bool_]) -> list[Span]:
    """The spans that are wanted, of those that follow one another, neighbours as one."""
    runs = (run.span() for run in re.finditer(b"\x01+", wanted.tobytes()))
    ends = ((spans[first][0], sum(spans[end - 1])) for first, end in runs)
    return [(at, end - at) for at, end in ends if end > at]


def agree(data: memoryview, snapshot: Snapshot, offered: bytes, parts: Sequence[Span]) -> bool:
    """The blocks of `data` that lie in `parts` have the digests that were offered."""
    spans = blocks(snapshot)
    there = np.flatnonzero(_within(parts, spans)).tolist()
    wanted = (offered[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES] for i in there)
    return digests(data, [spans[i] for i in there]) == b"".join(wanted)


class BlockDedup:
    """The ranks of this node as a source of what peers offer. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = Lock()
        self._arenas: dict[int, ArenaReader] = {}
        self._alike: dict[tuple[int, int], bool] = {}  # (offered, own) rank -> had much in common last time

    def attach(self, rank: int, arena_fd: int) -> None:
        """This rank runs here; the descriptor stays the caller's."""
        own = os.dup(arena_fd)
        arena = ArenaReader(own)
        weakref.finalize(arena, os.close, own)  # whoever still copies from it may finish
        with self._lock:
            self._arenas[rank] = arena

    def detach(self, rank: int) -> None:
        """It runs elsewhere."""
        with self._lock:
            self._arenas.pop(rank, None)

    def forget(self) -> None:
        """Another attempt begins: ranks may have other states."""
        with self._lock:
            self._alike.clear()

    def lend(
        self, snapshot: Snapshot, offered: bytes, *, known: Sequence[Span] = ()
    ) -> tuple[Loan | None, list[Span]]:
        """What ranks here have of an offered checkpoint, and what is lacking. The blocks in `known` have come
        already.

        A rank that usually has the same, and has not saved that step yet, is waited for a little.
        """
        spans, parts = blocks(snapshot), []
        lacking = ~_within(known, spans)
        if len(offered) != DIGEST_BYTES * len(spans):
            return None, joined(spans, lacking)
        for rank, arena, info in self._saved(snapshot):
            if not lacking.any():
                break
            same = _equal(offered, arena.digests(info))
            in_common = joined(spans, same)
            alike = worthwhile(sum(size for _, size in in_common), snapshot.total_bytes)
            self._judge(snapshot.rank, rank, alike)
            borrowed = joined(spans, same & lacking)
            if alike and borrowed and arena.lend(info):  # of a little the replica need not depend
                parts.append((arena, info, borrowed))
                lacking &= ~same
        loan, asked = Loan(parts) if parts else None, joined(spans, lacking)
        if len(asked) <= MOST_PARTS:
            return loan, asked
        if loan is not None:
            loan.end()
        return None, [(0, snapshot.total_bytes)]

    def _saved(self, snapshot: Snapshot) -> Iterator[tuple[int, ArenaReader, SlotInfo]]:
        """The ranks here with a checkpoint of that step and size, once those that are expected have it; first
        those that had much in common last time."""
        deadline, (nap_s, longest_s) = self._clock() + _PATIENCE_S, _NAP_S
        while True:
            with self._lock:
                arenas = list(self._arenas.items())
            saves = [(rank, arena, _of_size(arena, snapshot)) for rank, arena in arenas]
            coming = [rank for rank, _, infos in saves if infos and infos[0].step < snapshot.step]
            coming = [rank for rank in coming if self._alike.get((snapshot.rank, rank), True)]
            if not coming or self._clock() >= deadline:
                break
            self._sleep(nap_s)
            nap_s = min(2 * nap_s, longest_s)
        for rank in coming:
            self._judge(snapshot.rank, rank, alike=False)  # do not wait again before it was there in time
        for rank, arena, infos in sorted(saves, key=lambda s: not self._alike.get((snapshot.rank, s[0]))):
            yield from ((rank, arena, info) for info in infos if info.step == snapshot.step)

    def _judge(self, offered: int, own: int, alike: bool) -> None:
        with self._lock:
            self._alike[offered, own] = alike


def _within(parts: Sequence[Span], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Which of the spans, which follow one another, one of the parts has all of."""
    found = np.zeros(len(spans), dtype=np.bool_)
    for at, size in parts:
        first = bisect_left(spans, at, key=itemgetter(0))
        found[first : bisect_right(spans, at + size, key=sum)] = True
    return found


def _of_size(arena: ArenaReader, snapshot: Snapshot) -> list[SlotInfo]:
    """Newest first."""
    return [info for info in arena.published() if info.payload_bytes == snapshot.payload_bytes]


def _equal(offered: bytes, own: bytes) -> npt.NDArray[np.bool_]:
    """Which blocks have equal digests; none where they are not the same number."""
    theirs = np.frombuffer(offered, dtype=np.int64).reshape(-1, 2)
    if len(own) != len(offered):
        return np.zeros(len(theirs), dtype=np.bool_)
    same: npt.NDArray[np.bool_] = (theirs == np.frombuffer(own, dtype=np.int64).reshape(-1, 2)).all(axis=1)
    return same
