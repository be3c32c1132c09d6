"""Phase two: the agent brings checkpoints from its arenas to storage, beside the training.

For each rank: table, then (when every rank's table is there, so that equal content is written by one rank
only) the pack, then the receipt. The agent that holds rank 0 waits for all receipts and writes the
manifest. Whoever fails or is late leaves a step that does not exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Protocol, TypeVar

import xxhash

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.layout import decode
from pulsetrain.checkpoint.memory.slots import SlotInfo, payload_offset
from pulsetrain.checkpoint.storage.backend import Paced
from pulsetrain.checkpoint.storage.manifest import (
    MANIFEST,
    Blob,
    Checkpoints,
    Manifest,
    Segment,
    Table,
    folder_of,
)
from pulsetrain.core.errors import CheckpointError, CorruptData, PulsetrainError

T = TypeVar("T")

ANNOUNCEMENT_S = 0.05  # how often storage is asked whether rank 0 has begun

WRITERS = 32  # each waits for the tables of all ranks, so there must be one for each rank of a node


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
    """Watches arenas for pinned checkpoints and persists them. Its threads never raise; failures are
    events."""

    def __init__(self, checkpoints: Checkpoints, config: PersistConfig, ledger: CheckpointEvents) -> None:
        self._checkpoints = checkpoints
        self._config = config
        self._ledger = ledger
        self._paced = Paced(config.bandwidth_bytes_per_s)
        self._arenas: dict[int, ArenaReader] = {}
        self._busy: dict[int, int] = {}  # rank -> generation on its way
        self._newest: tuple[Manifest, ...] = ()
        self._known_announced: set[tuple[int, int]] = set()  # (attempt, step)
        self._look_again = 0.0
        self._lock = Lock()
        self._retaining = Lock()
        self._idle: dict[int, int] = {}  # the `active` word of arenas in which nothing waited
        self._stop = Event()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="pulsetrain-persist")
        self._thread = Thread(target=self._run, name="pulsetrain-persister", daemon=True)
        self._thread.start()

    def attach(self, rank: int, arena: ArenaReader) -> None:
        """Persist this rank's pinned checkpoints from now on."""
        with self._lock:
            self._arenas[rank] = arena
            self._idle.pop(rank, None)

    def detach(self, rank: int) -> None:
        """The rank is somebody else's now."""
        with self._lock:
            self._arenas.pop(rank, None)

    @property
    def newest(self) -> tuple[Manifest, ...]:
        """The newest committed checkpoints, newest first."""
        return self._newest

    def close(self) -> None:
        """Abandon what is not committed."""
        self._stop.set()
        self._thread.join(5)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        self._look()
        while not self._stop.wait(self._config.poll_s):
            for rank, arena in list(self._arenas.items()):
                newest = arena.active
                if self._idle.get(rank) == newest:
                    continue
                waiting = [
                    i
                    for i in reversed(arena.published())
                    if i.pinned and i.rank == rank and not arena.taken(i)
                ]
                waiting = [i for i in waiting if i.generation != self._busy.get(rank)]
                if waiting:
                    self._try_choose(rank, arena, waiting)
                elif rank not in self._busy:
                    self._idle[rank] = newest

    def _try_choose(self, rank: int, arena: ArenaReader, waiting: list[SlotInfo]) -> None:
        try:
            self._choose(rank, arena, waiting)
        except Exception as error:  # noqa: BLE001 - a thread's edge: what a storage raises is an event
            detail = {"step": waiting[0].step, "error": str(error)}
            self._ledger.event("persist_failed", detail, rank=rank)
            arena.set_taken(waiting[0])

    def _choose(self, rank: int, arena: ArenaReader, waiting: list[SlotInfo]) -> None:
        """Persist one of a rank's pinned checkpoints (oldest first), give up those that were overtaken.

        Rank 0 takes what was asked for first, else the newest; the others follow it, so that all persist
        the same steps however slow the storage is to each of them.
        """
        chosen = self._wanted(waiting) if rank == 0 else self._announced(waiting)
        periodic = [i for i in waiting if not i.durable]
        overtaken = [i for i in periodic if chosen and i.generation < chosen.generation]
        overtaken += periodic[:-2]  # the newest two may still be announced
        for info in dict.fromkeys(overtaken):
            self._give_up(rank, arena, info)
        with self._lock:
            if chosen is None or rank in self._busy:
                return
            self._busy[rank] = chosen.generation
        self._pool.submit(self._persist, rank, arena, chosen)

    @staticmethod
    def _wanted(waiting: list[SlotInfo]) -> SlotInfo:
        return next((i for i in waiting if i.durable), waiting[-1])

    def _announced(self, waiting: list[SlotInfo]) -> SlotInfo | None:
        """The oldest for which rank 0 has written its table."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + max(self._config.poll_s, ANNOUNCEMENT_S)
            for info in waiting:
                path = self._checkpoints.path(folder_of(info.step))
                if f"{stem(info, 0)}.table.json" in self._checkpoints.storage.list(path):
                    self._known_announced.add((info.attempt, info.step))
        return next((i for i in waiting if (i.attempt, i.step) in self._known_announced), None)

    def _give_up(self, rank: int, arena: ArenaReader, info: SlotInfo) -> None:
        arena.set_taken(info)
        self._ledger.stage("skip", "storage", rank=rank, step=info.step)
        self._ledger.event("persist_skipped", {"step": info.step, "reason": "storage is slow"}, rank=rank)

    def _persist(self, rank: int, arena: ArenaReader, info: SlotInfo) -> None:
        started = time.monotonic_ns()
        try:
            written = _RankWriter(self._checkpoints, arena, info, self._paced, self._wait).write(
                self._checkpoints.kept(self._newest), self._config.gather_s
            )
            arena.set_taken(info)
            self._done(rank)
            self._record("persist", info, written, started)
            manifest = self._commit(info) if rank == 0 else self._await_manifest(info)
            self._record("commit", info, manifest.tables[rank].bytes, started)
            self._committed(manifest, rank)
        except (OSError, PulsetrainError) as error:
            self._ledger.event("persist_failed", {"step": info.step, "error": str(error)}, rank=rank)
        except Exception as error:  # noqa: BLE001 - a thread's edge: whatever a storage backend raises is an event
            self._ledger.event("persist_failed", {"step": info.step, "error": repr(error)}, rank=rank)
        finally:
            arena.set_taken(info)
            self._done(rank, info.generation)

    def _done(self, rank: int, generation: int | None = None) -> None:
        """The rank's bytes are out, or given up: the next checkpoint may go."""
        with self._lock:
            if generation in (None, self._busy.get(rank)):
                self._busy.pop(rank, None)

    def _commit(self, info: SlotInfo) -> Manifest:
        """Wait for every rank's receipt and write the manifest."""
        tables = {row["rank"]: Table.parse(row) for row in self._gather(info, "table")}
        receipts = self._gather(info, "receipt")
        blobs = {h: Blob(file=f, offset=o, bytes=b) for r in receipts for h, (f, o, b) in r["blobs"].items()}
        missing = {s.hash for t in tables.values() for s in t.segments} - set(blobs)
        if missing:
            raise CheckpointError(f"step {info.step}: nobody wrote {len(missing)} segments")
        manifest = Manifest(
            job=self._checkpoints.job,
            step=info.step,
            attempt=info.attempt,
            world=info.world,
            created_ns=time.time_ns(),
            written_bytes=sum(r["written"] for r in receipts),
            tables=tables,
            blobs=blobs,
        )
        path = self._checkpoints.path(f"{folder_of(info.step)}/{MANIFEST}")
        with self._retaining:  # a pack of an earlier step may have gone since a rank chose to refer to it
            lost = self._checkpoints.lost_files(manifest)
            if lost:
                raise CheckpointError(f"step {info.step} refers to what is gone: {', '.join(lost)}")
            self._checkpoints.storage.put(path, [manifest.encode()])
        return manifest

    def _record(self, stage: str, info: SlotInfo, size: int, started: int) -> None:
        took = time.monotonic_ns() - started
        self._ledger.stage(stage, "storage", rank=info.rank, step=info.step, size=size, duration_ns=took)

    def _committed(self, manifest: Manifest, rank: int) -> None:
        with self._lock:
            others = [m for m in self._newest if m.step != manifest.step]
            self._newest = tuple(sorted([manifest, *others], key=lambda m: -m.step)[:2])
            for arena in self._arenas.values():
                arena.set_durable(manifest.step)
        if rank == 0:
            with self._retaining:
                gone = self._checkpoints.retain(last=self._config.keep_last, every=self._config.keep_every)
            if gone:
                self._ledger.event("checkpoints_removed", {"steps": gone})

    def _await_manifest(self, info: SlotInfo) -> Manifest:
        def look() -> Manifest | None:
            manifest = self._checkpoints.manifest(info.step)
            return manifest if manifest and manifest.attempt == info.attempt else None

        return self._wait(look, self._config.commit_timeout_s, f"manifest of step {info.step}")

    def _gather(self, info: SlotInfo, kind: str) -> list[dict[str, Any]]:
        """That file of every rank of the step."""
        what = f"{kind}s of step {info.step}"
        return self._wait(
            lambda: read_all(self._checkpoints, info, kind), self._config.commit_timeout_s, what
        )

    def _wait(self, look: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """Poll until `look` gives something. Raises `CheckpointError` when it is late or the keeper ends."""
        deadline, pause = time.monotonic() + timeout_s, self._config.poll_s
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise CheckpointError(f"{what}: not complete after {timeout_s} s")
            if self._stop.wait(pause):
                raise CheckpointError(f"{what}: the keeper ended")
            pause = min(1.0, pause * 1.5)
        return found

    def _look(self) -> None:
        try:
            self._newest = tuple(self._checkpoints.committed(newest=2))
        except Exception as error:  # noqa: BLE001 - a storage that refuses at the start is an event, not an end
            self._ledger.event("storage_unreadable", {"error": str(error)})


class Wait(Protocol):
    """Polls until `look` gives something; raises `CheckpointError` when it is late."""

    def __call__(self, look: Callable[[], T | None], timeout_s: float, what: str) -> T: ...


class _RankWriter:
    """Table, pack and receipt of one rank."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        arena: ArenaReader,
        info: SlotInfo,
        paced: Paced,
        wait: Wait,
    ) -> None:
        self._checkpoints, self._arena, self._info = checkpoints, arena, info
        self._paced, self._wait = paced, wait
        self._data = arena.view(info)

    def write(self, newest: Iterable[Manifest], gather_s: float) -> int:
        """Bytes written. Raises `CorruptData` where memory no longer has its checksum, `OSError` from
        storage."""
        info = self._info
        if not self._arena.verify(info):
            raise CorruptData(f"step {info.step}: the arena's bytes do not have their checksum")
        table = table_of(info, self._data)
        self._put("table.json", [json.dumps(table.as_json()).encode()])
        mine = self._share(table, gather_s)
        known = {h: b for m in newest for h, b in m.blobs.items()}
        fresh = {s.hash: s for s in mine if s.hash not in known}
        blobs = {s.hash: known[s.hash] for s in mine if s.hash in known}
        pack = f"{folder_of(info.step)}/{stem(info, info.rank)}.pack"
        offset = 0
        for segment in fresh.values():
            blobs[segment.hash] = Blob(file=pack, offset=offset, bytes=segment.bytes)
            offset += segment.bytes
        if fresh:
            self._put("pack", self._pieces(fresh.values()))
        if not self._arena.still(info):
            raise CheckpointError(f"step {info.step} was rolled back while it was persisted")
        rows = {h: [b.file, b.offset, b.bytes] for h, b in blobs.items()}
        self._put("receipt.json", [json.dumps({"written": offset, "blobs": rows}).encode()])
        return offset

    def _share(self, table: Table, gather_s: float) -> list[Segment]:
        """The segments that this rank writes: of equal content, one rank each, spread evenly; all, if some
        rank's table does not come in time (then others may write the same again, which wastes room and
        nothing else)."""
        info = self._info
        try:
            tables = self._wait(lambda: read_all(self._checkpoints, info, "table"), gather_s, "tables")
        except CheckpointError:
            return list(table.segments)
        return assigned(info.rank, [Table.parse(t) for t in tables])

    def _pieces(self, segments: Iterable[Segment]) -> Iterable[memoryview]:
        for segment in segments:
            yield from self._paced(self._data[segment.offset : segment.offset + segment.bytes])

    def _put(self, suffix: str, chunks: Iterable[memoryview | bytes]) -> None:
        path = f"{folder_of(self._info.step)}/{stem(self._info, self._info.rank)}.{suffix}"
        self._checkpoints.storage.put(self._checkpoints.path(path), chunks)


def stem(info: SlotInfo, rank: int) -> str:
    """Name that the files of a rank begin with; of another attempt, another name."""
    return f"a{info.attempt}-rank-{rank:05d}"


def table_of(info: SlotInfo, data: memoryview) -> Table:
    """Hash of layout and values together, and of each tensor."""
    layout = decode(data[: info.layout_bytes])
    start = payload_offset(info.layout_bytes, info.values_bytes)
    spans = [(0, info.layout_bytes + info.values_bytes)]
    spans += [(start + e.offset, e.bytes) for e in layout.entries if e.bytes]
    return Table(
        rank=info.rank,
        layout_bytes=info.layout_bytes,
        values_bytes=info.values_bytes,
        payload_bytes=info.payload_bytes,
        segments=tuple(
            Segment(offset=o, bytes=n, hash=xxhash.xxh3_128_hexdigest(data[o : o + n])) for o, n in spans
        ),
    )


def assigned(rank: int, tables: Iterable[Table]) -> list[Segment]:
    """What `rank` writes when each distinct content is written once: by the holder with least to write so
    far.

    Every rank computes the same from the same tables.
    """
    holders: dict[str, list[int]] = {}
    size: dict[str, int] = {}
    mine: dict[str, Segment] = {}
    for table in sorted(tables, key=lambda t: t.rank):
        for segment in table.segments:
            owners = holders.setdefault(segment.hash, [])
            if table.rank not in owners:
                owners.append(table.rank)
            size[segment.hash] = segment.bytes
            if table.rank == rank:
                mine.setdefault(segment.hash, segment)
    load: dict[int, int] = {}
    chosen = []
    for content in sorted(holders, key=lambda h: (-size[h], h)):
        writer = min(holders[content], key=lambda r: (load.get(r, 0), r))
        load[writer] = load.get(writer, 0) + size[content]
        if writer == rank:
            chosen.append(mine[content])
    return sorted(chosen, key=lambda s: s.offset)


def read_all(checkpoints: Checkpoints, info: SlotInfo, kind: str) -> list[dict[str, Any]] | None:
    """That file of every rank of the step; None while one is missing."""
    folder = folder_of(info.step)
    names = [f"{stem(info, rank)}.{kind}.json" for rank in range(info.world)]
    if not set(names) <= set(checkpoints.storage.list(checkpoints.path(folder))):
        return None
    return [json.loads(checkpoints.storage.read(checkpoints.path(f"{folder}/{name}"))) for name in names]
