"""The arena of one rank, and what of it was recorded."""

from __future__ import annotations

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader


class WatchedArena:
    """One rank's arena, and what of it was recorded already."""

    def __init__(self, rank: int, arena: ArenaReader, recorded: int | None = None) -> None:
        """`recorded` is the last publication that was. None: all that there are."""
        self.rank, self.arena = rank, arena
        self.active = arena.active if recorded is None else min(recorded, arena.active)
        self._skips = arena.skip_count

    def record_saves(self, events: CheckpointEvents) -> bool:
        """Record checkpoints and skipped saves that are new since the last call. Whether there were any."""
        arena = self.arena
        before = self.active, self._skips
        if arena.active != self.active:
            recorded = self.active >> 3
            self.active = arena.active
            for info in reversed(arena.published()):
                if info.generation > recorded and info.blocked_ns:
                    for stage, took_ns in (("copy", info.copy_ns), ("stall", info.blocked_ns)):
                        events.slot_stage(stage, "memory", info, took_ns, ts_ns=info.published_ns)
        if arena.skip_count != self._skips:
            self._skips = arena.skip_count
            step, reason = arena.skip_step, arena.skip_reason
            events.stage("skip", "memory", rank=self.rank, step=step)
            events.event("checkpoint_skipped", {"step": step, "reason": reason}, rank=self.rank)
        return before != (self.active, self._skips)
