"""Restores a rank's checkpoint into its arena: from own memory, a peer's memory, or storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import xxhash

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.slots import Header, SlotInfo, history_of
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.peers.replicas import ANY, Replicas, Snapshot
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment
from pulsetrain.checkpoint.storage.shards import Reads, Shards, readers
from pulsetrain.core.errors import (
    CheckpointError,
    CorruptData,
    MemoryShort,
    PulsetrainError,
    Unrestorable,
)

Connect = Callable[[str], PeerClient]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where this node may look: its own replicas, peers by name, and storage (None: there is none).

    `home` maps each rank to its node.
    """

    node: str
    replicas: Replicas
    connect: Connect
    peers: tuple[str, ...]
    checkpoints: Checkpoints | None
    shards: Shards
    home: Mapping[int, str]


class Restorer:
    """Fetches one rank's checkpoint. A source that fails is an event, and the next one is tried."""

    def __init__(
        self,
        sources: Sources,
        events: CheckpointEvents,
        *,
        saved_attempt: int = ANY,
        saved_history: int = ANY,
    ) -> None:
        """Only what `saved_attempt` has saved counts, in its `saved_history`, where these are given.

        Ranks must not go on from states of one step before and after the script went back.
        """
        self._sources, self._saved_attempt, self._saved_history = sources, saved_attempt, saved_history
        self._events = events
        self._reads = Reads()

    def load(self, fd: int, rank: int, step: int, source: str) -> int:
        """Make the arena hold `step`, verified, and nothing later. Returns the nanoseconds taken.

        Raises `CheckpointError` where no source gave it, `Unrestorable` where each answered and none has it
        whole.
        """
        started, reasons, away = time.monotonic_ns(), [], False
        here = any(self._fits(s, rank, step) for s in self._sources.replicas.list())
        peers = ((self._sources.node,) if here else ()) + self._sources.peers
        for name in order(source, peers):
            try:
                info = self._fetch(name, fd, rank, step)
            except (PulsetrainError, OSError) as error:
                reasons.append(f"{name}: {error}")
                away = away or not _answered(error)
                self._events.event(
                    "restore_fallthrough", {"step": step, "source": name, "error": str(error)}, rank=rank
                )
                continue
            took_ns = time.monotonic_ns() - started
            tier = name.split(":")[0]
            self._events.slot_stage("restore", tier, info, took_ns)
            if tier == "storage":
                self._record_reads(rank, step, took_ns)
            return took_ns
        message = f"step {step} of rank {rank} cannot be restored: {'; '.join(reasons)}"
        raise CheckpointError(message) if away else Unrestorable(message, rank=rank, step=step)

    def _fetch(self, name: str, fd: int, rank: int, step: int) -> SlotInfo:
        reader, writer = ArenaReader(fd), ArenaWriter(fd)
        if name == "memory":
            info = self._from_memory(reader, rank, step)
        elif name == "storage":
            info = self._from_storage(writer, rank, step)
        elif name == f"peer:{self._sources.node}":
            info = self._from_own_replica(writer, rank, step)
        else:
            info = self._from_peer(writer, name.removeprefix("peer:"), rank, step)
        reader.forget_after(step)
        reader.set_verified(info)
        return info

    def _fits(self, saved: SlotInfo | Snapshot, rank: int, step: int) -> bool:
        same = (saved.rank, saved.step) == (rank, step) and self._saved_attempt in (ANY, saved.attempt)
        return same and self._is_of_history(saved.edition)

    def _is_of_history(self, edition: int) -> bool:
        return self._saved_history in (ANY, history_of(edition))

    def _from_memory(self, reader: ArenaReader, rank: int, step: int) -> SlotInfo:
        saved = [info for info in reader.published() if (info.rank, info.step) == (rank, step)]
        info = next((info for info in saved if self._fits(info, rank, step)), None)
        if info is None:
            raise CheckpointError("the arena does not have it")
        for other in saved[: saved.index(info)]:  # the rank takes the newest
            reader.invalidate(other)
        if not reader.verify(info):
            reader.invalidate(info)
            raise CorruptData("the arena's bytes do not have their checksum")
        return info

    def _from_own_replica(self, writer: ArenaWriter, rank: int, step: int) -> SlotInfo:
        """From the replica that this node had before the rank moved here."""
        with self._sources.replicas.reading(
            rank, step, self._saved_attempt, history=self._saved_history
        ) as replica:
            if replica is None:
                raise CheckpointError("no replica here")
            snapshot, data = replica
            info = write_slot(writer, snapshot.header(), lambda target: copy_bytes(target, data))
        if info.checksum != snapshot.checksum:
            writer.invalidate(info)
            raise CorruptData("the replica here does not have its checksum")
        return info

    def _from_peer(self, writer: ArenaWriter, peer: str, rank: int, step: int) -> SlotInfo:
        client = self._sources.connect(peer)
        try:
            info = client.get(rank, step, writer, self._saved_attempt, self._saved_history)
        finally:
            client.close()
        if not self._is_of_history(info.edition):  # from an older agent, which looks at the attempt only
            writer.invalidate(info)
            raise CheckpointError(f"step {step} there was saved before or after the script went back")
        return info

    def _from_storage(self, writer: ArenaWriter, rank: int, step: int) -> SlotInfo:
        manifest = self._manifest(step)
        if self._saved_attempt not in (ANY, manifest.attempt):
            raise CheckpointError(f"step {step} in storage is of attempt {manifest.attempt}")
        if not self._is_of_history(manifest.edition):
            raise CheckpointError(f"step {step} in storage was saved before or after the script went back")
        if rank not in manifest.tables:
            raise CheckpointError(f"step {step} in storage has no rank {rank}; its world is {manifest.world}")
        return self._write_stored(writer, manifest, rank, rank=rank, world=manifest.world)

    def _manifest(self, step: int) -> Manifest:
        checkpoints = self._sources.checkpoints
        manifest = checkpoints.manifest(step) if checkpoints else None
        if manifest is None:
            raise CheckpointError(f"step {step} is not in storage")
        if checkpoints is not None and checkpoints.is_foreign(manifest):
            raise CheckpointError(f"step {step} in storage is of another run that goes on beside this one")
        return manifest

    def _write_stored(
        self, writer: ArenaWriter, manifest: Manifest, saved: int, *, rank: int, world: int
    ) -> SlotInfo:
        """Give `rank` what rank `saved` has in storage."""
        table = manifest.tables[saved]
        header = Header(
            step=manifest.step,
            attempt=manifest.attempt,
            rank=rank,
            world=world,
            layout_bytes=table.layout_bytes,
            values_bytes=table.values_bytes,
            payload_bytes=table.payload_bytes,
            replicated=table.replicated,
            shard=table.shard,
            edition=manifest.edition,
        )
        self._reads = Reads()
        return write_slot(writer, header, lambda target: self._read_shards(manifest, saved, target))

    def _read_shards(self, manifest: Manifest, rank: int, target: memoryview) -> None:
        """Get each segment from the node that reads it for all nodes: this one, or a peer."""
        chosen = readers(manifest.tables.values(), self._sources.home)
        clients: dict[str, PeerClient | None] = {}
        try:
            for segment in manifest.tables[rank].segments:
                part = target[segment.offset : segment.offset + segment.bytes]
                node = chosen.get(segment.hash, self._sources.node)
                if not self._from_reader(node, clients, manifest, segment, part):
                    read = self._sources.shards.fill(manifest, segment, part)
                    self._reads.storage += read
                    self._reads.here += segment.bytes - read
        finally:
            for client in clients.values():
                if client is not None:
                    client.close()

    def _from_reader(
        self,
        node: str,
        clients: dict[str, PeerClient | None],
        manifest: Manifest,
        segment: Segment,
        part: memoryview,
    ) -> bool:
        """Ask the peer that reads this segment. False where this node has it or has to read it itself."""
        shards = self._sources.shards
        if node == self._sources.node or shards.here(manifest.step, segment.hash) is not None:
            return False
        try:
            if node not in clients:
                clients[node] = None
                clients[node] = self._sources.connect(node)
            client = clients[node]
            if client is None or not client.segment(manifest.step, segment.hash, part):
                return False
        except (PulsetrainError, OSError) as error:
            self._events.event("restore_reader_away", {"peer": node, "error": str(error)})
            clients[node] = None
            return False
        if xxhash.xxh3_128_hexdigest(part) != segment.hash:
            self._events.event("restore_reader_wrong", {"peer": node, "content": segment.hash})
            return False
        self._reads.peers += segment.bytes
        shards.offer(manifest.step, segment.hash, part)
        return True

    def _record_reads(self, rank: int, step: int, took_ns: int) -> None:
        """Record the bytes that came from storage, from peers that read them, and from ranks here."""
        reads = self._reads
        self._events.stage("read", "storage", rank=rank, step=step, size=reads.storage, duration_ns=took_ns)
        detail = {"step": step, "storage_bytes": reads.storage, "peer_bytes": reads.peers}
        self._events.event("restore_read", detail | {"shared_bytes": reads.here}, rank=rank)


def _answered(error: Exception) -> bool:
    """Whether it says that the source does not have the step, and not only that it cannot be fetched now."""
    return isinstance(error, CheckpointError | CorruptData) and not isinstance(error, MemoryShort)


def order(source: str, peers: Iterable[str]) -> tuple[str, ...]:
    """The order in which sources are tried: `source`, then memory, each peer, and storage.

    >>> order("peer:b", ["a", "b"])
    ('peer:b', 'memory', 'peer:a', 'storage')
    """
    names = [source, "memory", *(f"peer:{p}" for p in peers), "storage"]
    return tuple(dict.fromkeys(names))


def write_slot(writer: ArenaWriter, header: Header, fill: Callable[[memoryview], object]) -> SlotInfo:
    """Publish what `fill` writes. Raises `CheckpointError` where every slot is pinned."""
    writing = writer.begin(header)
    if writing is None:
        raise CheckpointError("every slot of the arena is pinned")
    writing.prefault()
    fill(writing.bytes)
    return writing.commit()


def copy_bytes(target: memoryview, data: memoryview) -> None:
    """Copy all of it."""
    target[:] = data
