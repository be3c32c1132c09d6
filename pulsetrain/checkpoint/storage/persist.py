"""The agent copies checkpoints from its arenas to storage while training goes on.

1. For each rank, the agent writes a table of what the rank's bytes are.
2. When every rank's table is there, it writes a pack. So equal content is written by one rank only.
3. It writes a receipt.
4. The agent of rank 0 waits for all receipts and writes the manifest.

A rank that fails or is late leaves a step without a manifest, which does not exist.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.storage.backend import RateLimit
from pulsetrain.checkpoint.storage.choosing import StepChooser
from pulsetrain.checkpoint.storage.commit import COMMIT_TIMEOUTS, Committer
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest
from pulsetrain.checkpoint.storage.polling import Poller
from pulsetrain.checkpoint.storage.rank_files import RankWriter
from pulsetrain.core.errors import CheckpointError, PulsetrainError
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.protocol.messages import NOT_READ

STALE_AFTER_S = 120.0  # choosing a step asks the storage, which may be slow
RETRY_S, MOST_RETRY_S = 0.5, 10.0  # between two tries of a durable save
PAST_TIMEOUTS, MOST_TIMEOUTS = 1, 10  # commit_timeout_s for which a durable one waits for rank 0
BEGIN_S = 10.0  # at the end, after which rank 0's agent begins no periodic save any more
READ_AGAIN_S = 5.0  # after a storage that refused
TABLES_SHARE = 0.15  # of the time at the end, for the tables of all ranks. Without them a step is given up.
WRITERS = 1024  # threads start when needed. Each waits for all ranks, so a node needs one for each rank.


@dataclass(frozen=True, kw_only=True)
class PersistConfig:
    """When a step is abandoned, how fast bytes may flow, and what is kept."""

    commit_timeout_s: float
    bandwidth_bytes_per_s: float
    keep_last: int
    keep_every: int
    poll_s: float
    gather_s: float = 5.0


class Persister:
    """Watches arenas for pinned checkpoints and persists them. A failure is an event, not an exception."""

    def __init__(self, checkpoints: Checkpoints, config: PersistConfig, events: CheckpointEvents) -> None:
        self._checkpoints = checkpoints
        self._config = config
        self._events = events
        self._rate_limit = RateLimit(config.bandwidth_bytes_per_s)
        self._stop = Event()
        self._poller = Poller(config.poll_s, self._stop)
        self._chooser = StepChooser(checkpoints, config.poll_s)
        self._committer = Committer(checkpoints, self._poller, events, timeout_s=config.commit_timeout_s)
        self._arenas: dict[int, ArenaReader] = {}
        self._busy: dict[int, int] = {}  # rank -> generation that is being persisted
        self._idle: dict[int, int] = {}  # rank -> `active` word of its arena when nothing waited
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="pulsetrain-persist")
        self._read_at_s = self._told_s = -math.inf
        self._waits_since: dict[int, dict[int, float]] = {}  # durable ones, by rank and generation
        self._all = False  # also what is not due
        self._gather_s = config.gather_s
        self._uncommitted = 0  # ranks whose step is written, or about to be, and not committed
        self._thread = LoopThread("persist", self._turn, stale_after_s=STALE_AFTER_S)
        self._thread.start()

    @property
    def loop(self) -> LoopStatus:
        """How the thread is that watches the arenas."""
        return self._thread.status()

    def attach(self, rank: int, arena: ArenaReader) -> None:
        """Persist this rank's pinned checkpoints from now on."""
        with self._lock:
            self._arenas[rank] = arena
            self._idle.pop(rank, None)

    def detach(self, rank: int) -> None:
        """The rank runs on another node now."""
        with self._lock:
            self._arenas.pop(rank, None)

    @property
    def newest(self) -> tuple[Manifest, ...]:
        """The newest committed checkpoints, newest first."""
        return self._committer.newest

    @property
    def stored_attempt(self) -> int:
        """The newest attempt that had written to storage, see `Committer.stored_attempt`."""
        return self._committer.stored_attempt

    @property
    def busy(self) -> frozenset[int]:
        """Ranks whose checkpoints are being written now."""
        return frozenset(self._busy)

    def persist_newest(self, timeout_s: float) -> int:
        """Persist the newest step that every rank has saved, also if it is not due. -1 where that fails.

        Call it when no rank trains any more. It returns once the step is committed, or after `timeout_s`.
        """
        began_s, deadline_s = time.monotonic(), time.monotonic() + timeout_s
        self._committer.wait_less(timeout_s * TABLES_SHARE)
        with self._lock:
            self._all, self._gather_s = True, min(self._gather_s, timeout_s * TABLES_SHARE)
            self._idle.clear()
        self._thread.wake()
        while time.monotonic() < deadline_s:
            step = self._persisted()
            if step is not None:
                return step
            if self._waits_for_rank_0() and time.monotonic() - began_s > 2 * TABLES_SHARE * timeout_s:
                return -1
            self._stop.wait(self._config.poll_s)
        return -1

    def finish(self) -> bool:
        """Wait until every checkpoint that was due is committed or has failed, which is an event.

        Call it when no rank trains any more. False where nothing has moved for three times
        `commit_timeout_s`. A periodic save that rank 0's agent, on another node, does not begin is not waited
        for.
        """
        self._thread.wake()
        seen, since_s = None, time.monotonic()
        while (left := self._left()) and not self._stop.is_set():
            now = (left, self._rate_limit.passed_bytes)
            if now != seen:
                seen, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > BEGIN_S and self._left(unbegun=False) == 0:
                return True
            elif time.monotonic() - since_s > (COMMIT_TIMEOUTS + 1) * self._config.commit_timeout_s:
                return False
            self._stop.wait(self._config.poll_s)
        return not left

    def _left(self, *, unbegun: bool = True) -> int:
        """How many checkpoints wait or are being written. One that waits may be counted twice.

        Without `unbegun`, periodic ones that another node must begin do not count.
        """
        with self._lock:
            arenas = dict(self._arenas)
        all_count = unbegun or 0 in arenas
        waiting = sum(
            i.pinned and (all_count or i.durable) and i.rank == r and i.world > 0 and not a.taken(i)
            for r, a in arenas.items()
            for i in a.published()
        )
        return waiting + self._uncommitted

    def _waits_for_rank_0(self) -> bool:
        """Whether nothing begins here because the agent of rank 0, which chooses, persists nothing."""
        with self._lock:
            return 0 not in self._arenas and not self._uncommitted

    def _persisted(self) -> int | None:
        """The newest step in all arenas here, once it is committed. None while something is under way."""
        with self._lock:
            arenas, busy = dict(self._arenas), bool(self._uncommitted)
        saved = [
            {(i.attempt, i.step, i.edition) for i in arena.published() if i.rank == rank and i.world > 0}
            for rank, arena in arenas.items()
        ]
        common = set.intersection(*saved) if saved else set()
        done = common & {(m.attempt, m.step, m.edition) for m in self._committer.newest}
        if not common or max(common) in done:
            return max((step for _, step, _ in done), default=-1)
        waits = any(
            i.rank == r and i.world > 0 and not a.taken(i) for r, a in arenas.items() for i in a.published()
        )
        return None if busy or waits else max((step for _, step, _ in done), default=-1)

    def close(self) -> None:
        """Abandon what is not committed."""
        self._stop.set()
        self._thread.stop(timeout_s=5)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _turn(self) -> float:
        if self.stored_attempt == NOT_READ and time.monotonic() >= self._read_at_s:
            self._committer.read_newest()
            self._read_at_s = time.monotonic() + READ_AGAIN_S
        for rank, arena in list(self._arenas.items()):
            active = arena.active
            if self._idle.get(rank) == active:
                continue
            waiting = [
                info
                for info in reversed(arena.published())
                if (info.pinned or self._all)
                and info.rank == rank
                and info.world > 0  # a copy of what another rank saved is that rank's to persist
                and not arena.taken(info)
                and info.generation != self._busy.get(rank)
            ]
            known = self._waits_since.get(rank, {})
            self._waits_since[rank] = {
                i.generation: known[i.generation] for i in waiting if i.generation in known
            }
            waiting = [info for info in waiting if not self._expires(rank, arena, info)]
            if waiting:
                self._persist_one(rank, arena, waiting)
            elif rank not in self._busy:
                self._idle[rank] = active
        return self._config.poll_s

    def _expires(self, rank: int, arena: ArenaReader, info: SlotInfo) -> bool:
        """Give up a durable checkpoint that waits for rank 0, which has given it up or is gone.

        Else it would keep its slot for ever.
        """
        if rank == 0 or not info.durable:
            return False
        since_s = self._waits_since[rank].setdefault(info.generation, time.monotonic())
        newest = arena.newest
        is_past = newest is not None and newest.attempt > info.attempt
        waits_s = PAST_TIMEOUTS if is_past else MOST_TIMEOUTS
        if time.monotonic() - since_s < waits_s * self._config.commit_timeout_s:
            return False
        self._record_failure(info, "rank 0 does not begin to write it")
        arena.set_taken(info)
        return True

    def _persist_one(self, rank: int, arena: ArenaReader, waiting: list[SlotInfo]) -> None:
        """Start to persist one of a rank's pinned checkpoints, and give up those that were overtaken."""
        try:
            chosen, overtaken = self._chooser.choose(rank, waiting)
        except Exception as error:  # noqa: BLE001 - a thread's edge: whatever a storage backend raises is an event
            if time.monotonic() >= self._told_s + READ_AGAIN_S:
                self._told_s = time.monotonic()
                self._record_failure(waiting[0], str(error))
            if not waiting[0].durable:
                arena.set_taken(waiting[0])
            return
        for info in () if self._all else overtaken:  # an older step may be the only one that all ranks have
            self._give_up(arena, info)
        with self._lock:
            if chosen is None or rank in self._busy:
                return
            self._busy[rank] = chosen.generation
            self._uncommitted += 1
        self._pool.submit(self._persist, arena, chosen)

    def _give_up(self, arena: ArenaReader, info: SlotInfo) -> None:
        arena.set_taken(info)
        self._events.stage("skip", "storage", rank=info.rank, step=info.step)
        detail = {"step": info.step, "reason": "storage is slow"}
        self._events.event("persist_skipped", detail, rank=info.rank)

    def _persist(self, arena: ArenaReader, info: SlotInfo) -> None:
        started, committed = time.monotonic_ns(), False
        try:
            written = self._write(arena, info)
            arena.set_taken(info)
            self._end_busy(info.rank)
            self._record("persist", info, written, started)
            is_committer = info.rank == 0
            manifest = self._committer.commit(info) if is_committer else self._committer.await_commit(info)
            self._record("commit", info, manifest.tables[info.rank].bytes, started)
            committed = True
            self._finish(manifest, is_committer)
        except (OSError, PulsetrainError) as error:
            self._record_failure(info, str(error))
        except Exception as error:  # noqa: BLE001 - a thread's edge: whatever a storage backend raises is an event
            self._record_failure(info, repr(error))
        finally:
            arena.set_taken(info)
            arena.end_persisting(info)
            self._end_busy(info.rank, info.generation)
            if info.rank == 0 and not committed:
                self._committer.give_up(info)
            with self._lock:
                self._uncommitted -= 1

    def _write(self, arena: ArenaReader, info: SlotInfo) -> int:
        """Write the rank's files, and return the bytes written. A durable save is tried again.

        The script has asked for it, and a storage that refuses once may take it a moment later.
        """
        deadline_s, wait_s = time.monotonic() + self._config.commit_timeout_s, RETRY_S
        while True:
            if not arena.begin_persisting(info):
                raise CheckpointError(f"step {info.step} was overwritten before it was persisted")
            writer = RankWriter(
                self._checkpoints, arena, info, rate_limit=self._rate_limit, poller=self._poller
            )
            try:
                return writer.write(self._committer.still_stored(), self._gather_s)
            except OSError:
                again = info.durable and arena.still(info) and time.monotonic() + wait_s < deadline_s
                if not again or self._stop.wait(wait_s):
                    raise
            wait_s = min(2 * wait_s, MOST_RETRY_S)

    def _end_busy(self, rank: int, generation: int | None = None) -> None:
        """The rank's bytes are written or given up. The next checkpoint may start."""
        with self._lock:
            if generation in (None, self._busy.get(rank)):
                self._busy.pop(rank, None)

    def _finish(self, manifest: Manifest, is_committer: bool) -> None:
        self._committer.remember(manifest)
        with self._lock:
            for arena in self._arenas.values():
                arena.set_durable(manifest.step, manifest.attempt, manifest.edition)
        if is_committer:
            self._committer.remove_old(
                manifest.step, keep_last=self._config.keep_last, keep_every=self._config.keep_every
            )

    def _record(self, stage: str, info: SlotInfo, size: int, started: int) -> None:
        took_ns = time.monotonic_ns() - started
        self._events.stage(stage, "storage", rank=info.rank, step=info.step, size=size, duration_ns=took_ns)

    def _record_failure(self, info: SlotInfo, error: str) -> None:
        self._events.event("persist_failed", {"step": info.step, "error": error}, rank=info.rank)
