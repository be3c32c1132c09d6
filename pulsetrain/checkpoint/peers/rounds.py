"""Which checkpoints of a node's ranks are sent to peers together.

A restore needs one step of all ranks of the world. So all ranks of a node send the same step, and a newer one
only when every peer has all of it. Peers keep the round before until the next one begins to arrive. The
arenas here overwrite the last two rounds last.

Where sending takes longer than a few saves, each node would choose other steps. So a node then sends only
every 2nd, 4th, 8th ... save, counted alike on all nodes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.peers.client import OutgoingReplica
from pulsetrain.checkpoint.peers.watched_arena import WatchedArena

STILL_S, STILL_GAPS = (
    1.0,
    3.0,
)  # without a save for so long, and so many gaps between saves, none is waited for
KNOWN_ROUNDS = 8

Saved = tuple[int, int]
"""Step and attempt."""


class Rounds:
    """Chooses the checkpoints of each round. Not thread-safe."""

    def __init__(self, *, newest: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """With `newest` each round is of the newest step, because training waits for it."""
        self._always_newest, self._clock = newest, clock
        self._round: Sequence[OutgoingReplica] = ()  # the last of which something arrived
        self._complete = True
        self._begun: dict[int, int] = {}  # rank -> generation of the last that was sent
        self._kept: list[Sequence[OutgoingReplica]] = []  # rounds that every peer has, newest last
        self._idle: set[int] = set()  # ranks that do not save with the others
        self._waits = False  # ranks have saved what is not sent yet
        self._late_since: float | None = None
        self._seen: tuple[int, ...] = ()
        self._newest_step, self._newest_s, self._gap_s = -1, 0.0, 0.0
        self._every = 0  # steps between saves
        self._passed: deque[int] = deque(maxlen=KNOWN_ROUNDS)  # steps while a round was sent

    def choose(self, watched: Sequence[WatchedArena]) -> Sequence[OutgoingReplica]:
        """What peers should have now: the last round, or the next one where that is complete."""
        if not self._complete and _intact(self._round):
            return self._round
        seen = tuple(one.arena.active for one in watched)
        if seen != self._seen or self._waits:
            self._seen = seen
            if chosen := self._next(watched):
                return chosen
        return self._round if _intact(self._round) else ()

    @contextmanager
    def sending(self, chosen: Sequence[OutgoingReplica]) -> Iterator[bool]:
        """Keep the ranks from overwriting any of it. False where one has begun to.

        Peers drop what they have of the round before the last one.
        """
        try:
            whole = all([one.arena.begin_sending(one.info) for one in chosen])
            if whole and chosen is not self._round and len(self._kept) > 1:
                self._keep(self._kept[-1:])
            yield whole
        finally:
            for one in chosen:
                one.arena.end_sending(one.info)

    def end(self, chosen: Sequence[OutgoingReplica], *, arrived: bool, complete: bool) -> None:
        """Some of it has `arrived`. `complete`: every peer that is there has all of it."""
        if not arrived or (chosen is self._round and self._complete):
            return
        self._round, self._complete = chosen, complete
        self._begun |= {one.info.rank: one.info.generation for one in chosen}
        if complete:
            self._keep([*self._kept[-1:], chosen])
            newest = max((one.step for r in chosen for one in r.arena.published()[:1]), default=0)
            step = max(r.info.step for r in chosen)
            self._passed.append(max(0, newest - step))

    def restart(self) -> None:
        """Other arenas or other peers: everything is sent anew."""
        self._keep([])
        self._round, self._complete, self._seen = (), True, ()
        self._begun.clear()
        self._idle.clear()
        self._passed.clear()
        self._waits, self._late_since, self._newest_step, self._every = False, None, -1, 0

    def _keep(self, rounds: Sequence[Sequence[OutgoingReplica]]) -> None:
        """Let the ranks overwrite the slots of these rounds last, and those of others as usual."""
        arenas = {r.info.rank: r.arena for kept in (*self._kept, *rounds) for r in kept}
        for rank, arena in arenas.items():
            arena.keep([r.info for kept in rounds for r in kept if r.info.rank == rank])
        self._kept = list(rounds)

    def _next(self, watched: Sequence[WatchedArena]) -> list[OutgoingReplica]:
        """The next round. None where there is nothing new, or something is waited for."""
        saved = {one.rank: _newer(one, self._begun.get(one.rank, 0)) for one in watched}
        ready = {rank: infos for rank, infos in saved.items() if infos}
        self._waits = bool(ready)
        if not ready:
            return []
        self._note(ready)
        self._idle -= ready.keys()
        late = saved.keys() - ready.keys() - self._idle
        if self._waits_for(late):
            return []
        self._idle |= late
        by_key = [{(i.step, i.attempt): i for i in infos} for infos in ready.values()]
        common = set(by_key[0]).intersection(*by_key[1:])
        key = self._pick(common, by_key[0]) if common else None
        if common and key is None:
            return []
        arenas = {one.rank: one.arena for one in watched}
        infos = [found[key] for found in by_key] if key else [infos[0] for infos in ready.values()]
        return [OutgoingReplica(arenas[info.rank], info) for info in infos]

    def _waits_for(self, late: Collection[int]) -> bool:
        """Some ranks have saved and these have not: whether they are waited for still."""
        if not late:
            self._late_since = None
            return False
        now = self._clock()
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since < self._still_s

    def _note(self, ready: Mapping[int, Sequence[SlotInfo]]) -> None:
        """Learn how often the ranks save."""
        first = next(iter(ready.values()))
        steps = sorted({i.step for i in first if i.attempt == first[0].attempt} | {self._newest_step} - {-1})
        gaps = [b - a for a, b in pairwise(steps)]
        self._every = min([*gaps, self._every or max(gaps, default=0)])
        newest = max(info.step for infos in ready.values() for info in infos)
        if newest != self._newest_step:
            now = self._clock()
            self._gap_s = now - self._newest_s if self._newest_step >= 0 else 0.0
            self._newest_step, self._newest_s = newest, now

    @property
    def _still_s(self) -> float:
        return max(STILL_S, STILL_GAPS * self._gap_s)

    def _pick(self, common: Collection[Saved], infos: Mapping[Saved, SlotInfo]) -> Saved | None:
        """The newest step that other nodes send too. None: wait for the next one."""
        newest = max(common)
        if self._always_newest or not self._every or infos[newest].replicated:
            return newest
        # The least power of two that is more than the saves that pass while a round is sent.
        saves = 1 << (max(self._passed, default=0) // self._every).bit_length()
        aligned = [key for key in common if key[0] // self._every % saves == 0]
        if aligned:
            return max(aligned)
        last = max((r.info.step for r in self._round), default=-1)
        far = newest[0] - last >= 2 * saves * self._every
        return newest if far or self._clock() - self._newest_s >= self._still_s else None


def _newer(one: WatchedArena, generation: int) -> list[SlotInfo]:
    """What the rank has saved since that generation, newest first."""
    return [i for i in one.arena.published() if i.rank == one.rank and i.generation > generation]


def _intact(chosen: Sequence[OutgoingReplica]) -> bool:
    return all(one.arena.still(one.info) for one in chosen)
