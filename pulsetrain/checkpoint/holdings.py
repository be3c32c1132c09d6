"""What a node could restore, as its heartbeat tells it."""

from __future__ import annotations

from collections.abc import Iterable

from pulsetrain.checkpoint.memory.slots import SlotInfo, history_of
from pulsetrain.checkpoint.peers.replicas import Snapshot
from pulsetrain.checkpoint.storage.manifest import Manifest
from pulsetrain.protocol.messages import Held, Tier


def in_memory(tier: Tier, saved: Iterable[SlotInfo | Snapshot]) -> list[Held]:
    """Checkpoints in arenas or among replicas, by rank and step."""
    return _sorted(
        Held(
            rank=one.rank,
            step=one.step,
            tier=tier,
            world=one.world,
            attempt=one.attempt,
            replicated=bool(one.replicated),
            shard=one.shard,
            history=history_of(one.edition),
        )
        for one in saved
    )


def in_storage(manifests: Iterable[Manifest]) -> list[Held]:
    """Committed checkpoints, by rank and step."""
    return _sorted(
        Held(
            rank=rank,
            step=manifest.step,
            tier="storage",
            world=manifest.world,
            attempt=manifest.attempt,
            replicated=table.replicated,
            shard=table.shard,
            history=history_of(manifest.edition),
        )
        for manifest in manifests
        for rank, table in manifest.tables.items()
    )


def _sorted(held: Iterable[Held]) -> list[Held]:
    return sorted(set(held), key=lambda one: (one.rank, one.step, one.attempt))
