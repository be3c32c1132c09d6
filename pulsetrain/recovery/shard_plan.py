"""From whose memory a world of another size can put a sharded state together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import Heartbeat, Held

SavedBy = tuple[int, int]
"""An attempt, and its number of ranks."""

KEPT_WORLDS = 8
COMPARED = 4
"""So many ranks that saved the same are named, for each part. Agents compare what they have."""


@dataclass(kw_only=True)
class KnownShards:
    """Which part of the whole state each rank of the last worlds has, also where its node is lost by now."""

    by_world: dict[SavedBy, dict[int, int]] = field(default_factory=dict)

    def note(self, heartbeat: Heartbeat) -> None:
        """Remember what ranks of this node have saved in their own attempt. Once for each rank."""
        held = heartbeat.held
        if not any(column(held, "shard")):
            return
        names = ("shard", "tier", "attempt", "world", "rank")
        for shard, tier, attempt, world, rank in zip(*(column(held, name) for name in names), strict=True):
            if shard and tier == "memory" and attempt == heartbeat.attempt:
                self.by_world.setdefault((attempt, world), {})[rank] = shard
        while len(self.by_world) > KEPT_WORLDS:
            del self.by_world[min(self.by_world)]


@dataclass(frozen=True, kw_only=True)
class ShardSources:
    """Step `step` as `world` ranks have saved it in `attempt`. -1: no step can be put together.

    `sources` maps saved ranks to storage or peer:NODE, and `copies` to the number of their part.
    """

    step: int
    attempt: int = -1
    world: int = 0
    sources: Mapping[int, str] = field(default_factory=dict)
    copies: Mapping[int, int] = field(default_factory=dict)


NONE = ShardSources(step=-1)


def plan_shards(
    held: Mapping[str, Iterable[Held]],
    known: Mapping[SavedBy, Mapping[int, int]],
    unrestorable: Collection[tuple[int, int]] = (),
) -> ShardSources:
    """The newest step of which every part is somewhere, and where each is.

    Memory is taken before storage. A world counts only where it is known of each of its ranks which part it
    has: what a lost rank had would else be missing without a trace.
    """
    found: dict[tuple[int, SavedBy], dict[int, dict[str, Held]]] = defaultdict(lambda: defaultdict(dict))
    for node, items in held.items():
        for item in items:
            if item.shard and item.world > 0 and (item.rank, item.step) not in unrestorable:
                source = "storage" if item.tier == "storage" else f"peer:{node}"
                found[item.step, (item.attempt, item.world)][item.rank][source] = item
    for step, saved_by in sorted(found, key=lambda key: (key[1][0], key[0], key[1]), reverse=True):
        ranks = found[step, saved_by]
        parts = {**known.get(saved_by, {}), **{r: next(iter(of.values())).shard for r, of in ranks.items()}}
        if len(parts) == saved_by[1] and {parts[rank] for rank in ranks} == set(parts.values()):
            sources = {rank: _nearest(ranks[rank]) for rank in _named(ranks, parts)}
            copies = {rank: parts[rank] for rank in sources}
            return ShardSources(
                step=step, attempt=saved_by[0], world=saved_by[1], sources=sources, copies=copies
            )
    return NONE


def _named(ranks: Mapping[int, Mapping[str, Held]], parts: Mapping[int, int]) -> list[int]:
    """Some ranks for each part: those in memory first, of these the first, the last, and others between."""
    by_part: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        by_part[parts[rank]].append(rank)
    named: list[int] = []
    for same in by_part.values():
        in_memory = [rank for rank in same if _nearest(ranks[rank]) != "storage"] or same[:1]
        named += dict.fromkeys([in_memory[-1], *in_memory[: COMPARED - 1]])
    return sorted(named)


def _nearest(sources: Mapping[str, Held]) -> str:
    """Its own arena before a replica, a replica before storage."""
    order = ("memory", "peer", "storage")
    return min(sources, key=lambda source: (order.index(sources[source].tier), source))
