"""Restores a rank of a world of another size from any rank's copy of a state that all have saved alike."""

from __future__ import annotations

import dataclasses

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.slots import Header, SlotInfo
from pulsetrain.checkpoint.peers.any_replica import AnyReplica
from pulsetrain.checkpoint.peers.replicas import ANY, Snapshot
from pulsetrain.checkpoint.restoring import Restorer, Sources, copy_bytes, write_slot
from pulsetrain.core.errors import CheckpointError, CorruptData

ANOTHERS = -1
"""In place of the number of ranks, in the header of a copy of what another rank saved."""


class ResizedRestorer(Restorer):
    """Gives any of `here`, of peers and of storage to a rank, for steps that `attempt` saved.

    A rank that has saved the step itself keeps its own copy, with its own random generators.
    """

    def __init__(self, sources: Sources, events: CheckpointEvents, *, here: AnyReplica, attempt: int) -> None:
        super().__init__(sources, events)
        self._here, self._attempt = here, attempt

    def _from_memory(self, reader: ArenaReader, rank: int, step: int) -> SlotInfo:
        own = next((i for i in reader.published() if (i.rank, i.step) == (rank, step)), None)
        if own is not None and own.replicated and own.attempt == self._attempt:
            return super()._from_memory(reader, rank, step)
        with self._here.reading(step, self._attempt) as found:
            if found is None:
                raise CheckpointError("no rank here has it")
            snapshot, data = found
            writer = ArenaWriter(reader.fd)
            info = write_slot(writer, header_for(rank, snapshot), lambda target: copy_bytes(target, data))
        if info.checksum != snapshot.checksum:
            writer.invalidate(info)
            raise CorruptData("the copy here does not have its checksum")
        return info

    def _from_own_replica(self, writer: ArenaWriter, rank: int, step: int) -> SlotInfo:
        return self._from_memory(ArenaReader(writer.fd), rank, step)

    def _from_peer(self, writer: ArenaWriter, peer: str, rank: int, step: int) -> SlotInfo:
        client = self._sources.connect(peer)
        try:
            return client.get_any(step, self._attempt, writer, lambda snapshot: header_for(rank, snapshot))
        finally:
            client.close()

    def _from_storage(self, writer: ArenaWriter, rank: int, step: int) -> SlotInfo:
        manifest = self._manifest(step)
        saved = min((r for r, table in manifest.tables.items() if table.replicated), default=-1)
        if saved < 0 or manifest.attempt != self._attempt:
            raise CheckpointError(f"step {step} in storage is not the state of all ranks")
        return self._write_stored(writer, manifest, saved, rank=rank, world=ANOTHERS)


def header_for(rank: int, snapshot: Snapshot) -> Header:
    """The header under which `rank` keeps a copy."""
    header = snapshot.header()
    return header if header.rank == rank else dataclasses.replace(header, rank=rank, world=ANOTHERS)


def restorer_for(
    sources: Sources,
    events: CheckpointEvents,
    *,
    here: AnyReplica,
    attempt: int,
    saved_attempt: int = -1,
    saved_history: int = -1,
) -> Restorer:
    """What restores the state that all ranks saved in `attempt`.

    -1: what each rank saved itself, in `saved_attempt` and `saved_history` (-1: in any).
    """
    if attempt >= 0:
        return ResizedRestorer(sources, events, here=here, attempt=attempt)
    known = [number if number >= 0 else ANY for number in (saved_attempt, saved_history)]
    return Restorer(sources, events, saved_attempt=known[0], saved_history=known[1])
