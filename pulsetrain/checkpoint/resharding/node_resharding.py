"""Puts together what the new ranks of a node need, out of what the ranks of a world of another size saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import TypeVar

import numpy as np
import structlog

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.layout import Entry, Layout, of_one_rank
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.resharding import mailbox
from pulsetrain.checkpoint.resharding.saved_shards import SavedKey, SavedShards
from pulsetrain.checkpoint.resharding.saved_tensors import (
    Offer,
    Piece,
    Place,
    SavedTensors,
    naming_ranks,
)
from pulsetrain.checkpoint.resharding.shard_sources import (
    Head,
    LocalSource,
    PeerSource,
    ShardSource,
    StoredSource,
)
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.core.errors import CheckpointError, NotReshardable, PulsetrainError
from pulsetrain.protocol.messages import Start

log = structlog.get_logger(__name__)

T = TypeVar("T")

POLL_S = 0.005
FILL_TRIES = 3
END_WAIT_S = 5.0
"""for a slot that is being filled as an attempt ends. A piece takes far less, unless its source is away"""
AGAIN_S = 0.5
"""between two tries to fill what a rank asked for: a peer may be late, and a restart costs seconds"""
STORAGE = "storage"


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """What is put together: the step that `world` ranks saved in `attempt`.

    `sources` says for each saved rank where its part is: "storage", or "peer:NODE". Ranks with the same
    number in `shards` are copies of one another.
    """

    step: int
    attempt: int
    world: int
    sources: Mapping[int, str]
    shards: Mapping[int, int]

    @classmethod
    def of(cls, start: Start) -> ShardPlan:
        """As the hub says it."""
        return cls(
            step=start.restore_step,
            attempt=start.saved_attempt,
            world=start.saved_world,
            sources={int(rank): source for rank, source in start.shards.items()},
            shards={int(rank): number for rank, number in start.copies.items()},
        )

    def key(self, rank: int) -> SavedKey:
        """What that rank saved."""
        return SavedKey(rank=rank, step=self.step, attempt=self.attempt, world=self.world)


class Sources:
    """The open sources of one plan. Not thread-safe. A source that fails is opened anew the next time."""

    def __init__(self, plan: ShardPlan, make: Callable[[str], ShardSource]) -> None:
        self._plan, self._make = plan, make
        self._open: dict[str, ShardSource] = {}
        self.bytes: dict[str, int] = {"memory": 0, "peer": 0, STORAGE: 0}

    def head(self, rank: int) -> Head:
        """Layout and values of a saved rank."""
        return self._call(rank, lambda source: source.head(self._plan.key(rank)))

    def digests(self, rank: int, entries: Sequence[int]) -> list[str]:
        """Hashes of some of its tensors."""
        return self._call(rank, lambda source: source.digests(self._plan.key(rank), entries))

    def part(self, piece: Piece, prefer: int) -> bytes:
        """The elements of a piece, from whoever has it: this node first, then the one that `prefer` says."""
        reasons = []
        for place in self._order(piece.box.places, prefer):
            try:
                data = self._part(place, piece)
            except (PulsetrainError, OSError) as error:
                reasons.append(f"rank {place.rank}: {error}")
                continue
            self.bytes[self._tier(place.rank)] += len(data)
            return data
        raise CheckpointError("; ".join(reasons))

    def _part(self, place: Place, piece: Piece) -> bytes:
        key = self._plan.key(place.rank)
        return self._call(place.rank, lambda source: source.part(key, place.entry, piece.inside))

    def close(self) -> None:
        """End all connections."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _order(self, places: Sequence[Place], prefer: int) -> list[Place]:
        turned = [*places[prefer % len(places) :], *places[: prefer % len(places)]]
        return sorted(turned, key=lambda place: ("memory", "peer", STORAGE).index(self._tier(place.rank)))

    def _tier(self, rank: int) -> str:
        source = self._open.get(self._plan.sources[rank])
        if self._plan.sources[rank] == STORAGE:
            return STORAGE
        return "memory" if isinstance(source, LocalSource) else "peer"

    def _call(self, rank: int, ask: Callable[[ShardSource], T]) -> T:
        name = self._plan.sources[rank]
        if name not in self._open:
            self._open[name] = self._make(name)
        try:
            return ask(self._open[name])
        except (PulsetrainError, OSError):
            self._open.pop(name).close()
            raise


class Resharding:
    """One plan at a time. A thread for each new rank waits until the rank says what it needs."""

    def __init__(
        self,
        saved: SavedShards,
        events: CheckpointEvents,
        *,
        node: str,
        connect: Callable[[str], PeerClient],
        checkpoints: Checkpoints | None,
    ) -> None:
        self._saved, self._events, self._node = saved, events, node
        self._connect, self._checkpoints = connect, checkpoints
        self._plan: ShardPlan | None = None
        self._tensors: SavedTensors | None = None
        self._offer: Offer | None = None
        self._arenas: dict[int, ArenaReader] = {}
        self._refusals: dict[int, str] = {}
        self._stop = Event()
        self._threads: list[Thread] = []

    def prepare(self, plan: ShardPlan) -> None:
        """Read what was saved, and compare the copies of each part with one another.

        Raises `NotReshardable` where it does not fit together, `CheckpointError` where something is away.
        """
        self.end()
        sources = Sources(plan, self._make)
        try:
            heads = self._heads(plan, sources)
            layouts = {rank: head.decoded for rank, head in heads.items()}
            tensors = SavedTensors(layouts)
            tensors.check_whole()
            _compare(tensors, sources)
        finally:
            sources.close()
        first, *others = [heads[rank] for rank in naming_ranks(layouts)]
        self._plan, self._tensors = plan, tensors
        self._offer = Offer(
            step=plan.step,
            tensors={name: (one.dtype, one.shape) for name, one in tensors.tensors.items()},
            layout=first.layout,
            values=first.values,
            others=tuple((head.layout, head.values) for head in others),
        )

    def offer(self, rank: int, fd: int) -> None:
        """Leave the offer for a new rank, and give it what it then asks for."""
        assert self._offer is not None, "prepare comes first"
        arena = self._arenas[rank] = ArenaReader(fd)
        put = ArenaWriter(fd)
        put.forget_after(self._offer.step)
        mailbox.put_offer(put, rank, self._offer)
        stop = self._stop
        thread = Thread(
            target=self._serve, args=(rank, arena, stop), name=f"pulsetrain-reshard-{rank}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def refusal(self, rank: int) -> str:
        """Why a rank of this plan cannot have its part, "" where it can or where a new attempt may help."""
        if rank not in self._arenas:
            return ""
        return self._refusals.get(rank) or mailbox.refused_offer(self._arenas[rank])

    def end(self) -> None:
        """No rank is given anything any more. What is written into their slots is waited for a little."""
        self._arenas.clear()
        self._refusals.clear()
        self._stop.set()
        until_s = time.monotonic() + END_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._stop, self._threads = Event(), []

    def _heads(self, plan: ShardPlan, sources: Sources) -> dict[int, Head]:
        heads, reasons = {}, []
        for rank in sorted(plan.sources):
            try:
                heads[rank] = sources.head(rank)
            except (PulsetrainError, OSError) as error:
                reasons.append(f"rank {rank}: {error}")
        if set(plan.shards.values()) - {plan.shards[rank] for rank in heads}:
            raise CheckpointError(f"step {plan.step} cannot be put together: {'; '.join(reasons)}")
        return heads

    def _serve(self, rank: int, arena: ArenaReader, stop: Event) -> None:
        """Wait for the rank's request and fill it. What a peer or storage refuses is tried again."""
        tries, number = FILL_TRIES, 0
        while not stop.wait(POLL_S if tries == FILL_TRIES else AGAIN_S):
            refusal = ""
            try:
                number, asked = arena.asked, mailbox.requested(arena)
                if asked is None:
                    continue
                self._fill(rank, arena, asked, stop)
            except (PulsetrainError, OSError, ValueError) as error:
                if stop.is_set():
                    return
                refusal, tries = str(error), tries - 1
                lasting = isinstance(error, NotReshardable)
                log.warning("reshard_failed", rank=rank, error=refusal)
                self._events.event("reshard_failed", {"error": refusal}, rank=rank)
                if lasting:
                    self._refusals[rank] = refusal
                elif tries:
                    continue
            if not stop.is_set():
                mailbox.answer(arena, number, refusal)
            return

    def _fill(self, rank: int, arena: ArenaReader, asked: tuple[Layout, memoryview], stop: Event) -> None:
        layout, payload = asked
        plan, tensors, began_ns = self._plan, self._tensors, time.monotonic_ns()
        assert plan is not None, "prepare comes first"
        assert tensors is not None, "prepare comes first"
        sources = Sources(plan, self._make)
        try:
            for entry in layout.entries:
                if entry.bytes and not of_one_rank(entry.name):
                    target = payload[entry.offset : entry.offset + entry.bytes]
                    pieces = _read(tensors.pieces(entry), sources, stop, prefer=rank)
                    for size in _put_together(entry, pieces, target):
                        arena.filled_bytes += size
        finally:
            sources.close()
        took_ns = time.monotonic_ns() - began_ns
        for tier, size in sources.bytes.items():
            if size:
                self._events.stage("restore", tier, rank=rank, step=plan.step, size=size, duration_ns=took_ns)
        detail = {"step": plan.step, "from_ranks": plan.world, "took_s": round(took_ns / 1e9, 3)}
        detail |= {f"{tier}_bytes": size for tier, size in sources.bytes.items()}
        self._events.event("resharded", detail, rank=rank)

    def _make(self, name: str) -> ShardSource:
        if name == STORAGE:
            if self._checkpoints is None:
                raise CheckpointError("there is no storage")
            return StoredSource(self._checkpoints)
        node = name.removeprefix("peer:")
        return LocalSource(self._saved) if node == self._node else PeerSource(self._connect(node))


def _compare(tensors: SavedTensors, sources: Sources) -> None:
    """Raises `NotReshardable` where ranks have saved different content under one name at one place."""
    boxes = [found for of_rank in tensors.copies().values() for found in of_rank]
    wanted: dict[int, list[int]] = {}
    for _, box in boxes:
        for place in box.places:
            wanted.setdefault(place.rank, []).append(place.entry)
    digests = {
        rank: dict(zip(entries, sources.digests(rank, entries), strict=True))
        for rank, entries in wanted.items()
    }
    for name, box in boxes:
        first = box.places[0]
        for other in box.places[1:]:
            if digests[other.rank][other.entry] != digests[first.rank][first.entry]:
                raise NotReshardable(
                    f"ranks {first.rank} and {other.rank} have saved different content as {name}, so that it "
                    "is not known which part of the whole state each has"
                )


def _read(
    pieces: Sequence[Piece], sources: Sources, stop: Event, *, prefer: int
) -> Iterator[tuple[Piece, bytes]]:
    """Each piece with its bytes. Raises `CheckpointError` once `stop` is set, also while one was read.

    Then the rank has ended, and another one may use its slot.
    """
    for piece in pieces:
        data = b"" if stop.is_set() else sources.part(piece, prefer)
        if stop.is_set():
            raise CheckpointError("the attempt has ended")
        yield piece, data


def _put_together(entry: Entry, pieces: Iterable[tuple[Piece, bytes]], target: memoryview) -> Iterator[int]:
    """Write each piece to its place in the tensor, and yield its size. One piece is in memory at a time."""
    itemsize = entry.bytes // max(1, int(np.prod(entry.shape)))
    whole = np.frombuffer(target, dtype=f"V{itemsize}").reshape(entry.shape)
    for piece, data in pieces:
        shape = tuple(one.stop - one.start for one in piece.outside)
        whole[piece.outside] = np.frombuffer(data, dtype=whole.dtype).reshape(shape)
        yield len(data)
