"""Which node runs which ranks of an attempt, and from where each rank's state comes back. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pulsetrain.protocol.messages import Held, Hello, WorldNode
from pulsetrain.recovery.shard_plan import NONE, SavedBy, ShardSources, plan_shards

SHARDS = "shards"
"""The source of a rank that puts its state together from several."""
FEW_STEPS = 10
"""that are done again rather than that random generators begin anew"""


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """`step` is -1 for a fresh start. `sources` maps each rank to memory, storage or peer:NODE.

    `replica_attempt` is -1 where each rank gets what it has saved itself. Else each rank gets what any rank
    has saved in that attempt, because all have saved the same. `saved_attempt` is the attempt that saved what
    each rank gets of its own, in that attempt's `saved_history` (-1: any). With `shards`, ranks put together
    what ranks of another world have saved. `abandoned`: the script had gone back since it was saved, and
    what it saved since is not whole.
    """

    step: int
    sources: Mapping[int, str]
    replica_attempt: int = -1
    saved_attempt: int = -1
    saved_history: int = -1
    shards: ShardSources = NONE
    abandoned: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Attempt and step: of two plans the one with more is newer."""
        attempt = self.replica_attempt if self.replica_attempt >= 0 else self.saved_attempt
        return (attempt, self.step) if self.step >= 0 else (-1, -1)


def form_world(hellos: Iterable[Hello], nnodes: int, before: Sequence[str] = ()) -> tuple[WorldNode, ...]:
    """The first world: the `nnodes` lowest node names, in order, so that the lowest is node_rank 0.

    Nodes that joined as standbys are taken only where the others do not suffice. `before` are the nodes of
    an earlier world by node rank. Those that are here are taken first and keep their rank, and their state.
    """
    order = {name: node_rank for node_rank, name in enumerate(before[:nnodes])}
    chosen = sorted(hellos, key=lambda hello: (hello.node not in order, hello.standby, hello.node))[:nnodes]
    ranks = {hello.node: order[hello.node] for hello in chosen if hello.node in order}
    free = iter(sorted(set(range(nnodes)) - set(ranks.values())))
    for hello in sorted(chosen, key=lambda hello: hello.node):
        if hello.node not in ranks:
            ranks[hello.node] = next(free)
    return tuple(
        world_node(hello, ranks[hello.node]) for hello in sorted(chosen, key=lambda h: ranks[h.node])
    )


def replace_nodes(
    world: Sequence[WorldNode],
    healthy: Iterable[str],
    standbys: Iterable[Hello],
    losses: Mapping[str, int] = MappingProxyType({}),
) -> tuple[WorldNode, ...]:
    """The world with a standby for each unhealthy node, lowest name first. Who was lost often comes last.

    Survivors keep their node_rank, so that each still has its own ranks' state in memory. Where no standby is
    left, the world keeps the name of the lost node.
    """
    alive = set(healthy)
    spare = iter(sorted(standbys, key=lambda hello: (losses.get(hello.node, 0), hello.node)))
    members = []
    for member in world:
        if member.node in alive or (hello := next(spare, None)) is None:
            members.append(member)
        else:
            members.append(world_node(hello, member.node_rank))
    return tuple(members)


def refresh(world: Sequence[WorldNode], hellos: Mapping[str, Hello]) -> tuple[WorldNode, ...]:
    """The same world with the addresses and ports of the agents' latest `Hello`."""
    return tuple(
        replace(m, address=hellos[m.node].address, peer_port=hellos[m.node].peer_port)
        if m.node in hellos
        else m
        for m in world
    )


def node_of(world: Iterable[WorldNode], rank: int) -> str:
    """The node that runs `rank`, "" where none does."""
    return next((m.node for m in world if rank in m.ranks), "")


def plan_restore(
    world: Sequence[WorldNode],
    held: Mapping[str, Iterable[Held]],
    unrestorable: Collection[tuple[int, int]] = (),
    known: Mapping[SavedBy, Mapping[int, int]] = MappingProxyType({}),
) -> RestorePlan:
    """The newest step that every rank of `world` can reach, and the nearest source for each rank.

    A later attempt is newer, whatever its step: it went on from what there was, or began anew. What an
    attempt had saved before its script went back counts only where nothing else covers all ranks, from the
    step on that it saved since.

    Own memory is nearest, then a copy in another node's memory, then storage. `held` maps reachable nodes to
    what they could give. `unrestorable` (rank, step) turned out to be whole nowhere. The step is -1, with
    no sources, where no step covers all ranks.

    What a world of another size has saved counts where every rank saved the same state: one copy of that is
    then enough for all ranks. It counts too where ranks saved shards of which all are there. `known` says
    which part of the whole state ranks of each world have. A world of the same size takes shards only where
    they are more than `FEW_STEPS` newer, because random generators are not restored from them.
    """
    for number, holdings in enumerate(_by_history(held)):
        plan = _plan(world, holdings, unrestorable, known)
        if plan.step >= 0:
            return replace(plan, abandoned=number > 0)
    return RestorePlan(step=-1, sources={})


def _plan(
    world: Sequence[WorldNode],
    holdings: Mapping[str, tuple[Held, ...]],
    unrestorable: Collection[tuple[int, int]],
    known: Mapping[SavedBy, Mapping[int, int]],
) -> RestorePlan:
    own = _plan_by_rank(world, holdings, unrestorable)
    replica = _plan_by_replica(world, holdings, unrestorable)
    best = replica if replica.order > own.order else own
    shards = plan_shards(holdings, known, unrestorable)
    ranks = sum(member.nproc for member in world)
    if (shards.attempt, shards.step) <= best.order:
        return best
    near = shards.attempt == best.order[0] and shards.step - best.step <= FEW_STEPS
    if shards.world == ranks and best.step >= 0 and near:
        return best
    return RestorePlan(
        step=shards.step,
        sources=dict.fromkeys(range(ranks), SHARDS),
        shards=shards,
        saved_attempt=shards.attempt,
    )


def _by_history(held: Mapping[str, Iterable[Held]]) -> Iterator[dict[str, tuple[Held, ...]]]:
    """What counts, then what had counted before the script went back for the last time, and so on."""
    holdings = {node: tuple(items) for node, items in held.items()}
    yield _without_abandoned(holdings)
    while any(item.history for items in holdings.values() for item in items):
        newest: dict[int, int] = {}
        for item in (item for items in holdings.values() for item in items):
            newest[item.attempt] = max(item.history, newest.get(item.attempt, 1))
        holdings = {n: tuple(i for i in s if i.history < newest[i.attempt]) for n, s in holdings.items()}
        yield _without_abandoned(holdings)


def _without_abandoned(holdings: Mapping[str, tuple[Held, ...]]) -> dict[str, tuple[Held, ...]]:
    """Leave out what a script has abandoned by going back. At least half of the ranks must have done so."""
    ranks: dict[tuple[int, int], set[int]] = defaultdict(set)  # by attempt and history
    begins: dict[tuple[int, int], int] = {}
    for item in (item for items in holdings.values() for item in items):
        key = (item.attempt, item.history)
        ranks[key].add(item.rank)
        begins[key] = min(item.step, begins.get(key, item.step))
    of_attempt: dict[int, set[int]] = defaultdict(set)
    for (attempt, _), some in ranks.items():
        of_attempt[attempt] |= some
    current = {
        attempt: max(
            (h for (a, h), some in ranks.items() if a == attempt and 2 * len(some) >= len(everyone)),
            default=0,
        )
        for attempt, everyone in of_attempt.items()
    }

    def counts(item: Held) -> bool:
        newest = current[item.attempt]
        return item.history >= newest or item.step < begins[item.attempt, newest]

    return {node: tuple(filter(counts, items)) for node, items in holdings.items()}


def _plan_by_rank(
    world: Sequence[WorldNode],
    held: Mapping[str, tuple[Held, ...]],
    unrestorable: Collection[tuple[int, int]],
) -> RestorePlan:
    """Each rank gets what it has saved itself, all of it in one attempt and history."""
    where: dict[tuple[int, int, int], dict[int, list[tuple[int, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    home = {rank: member.node for member in world for rank in member.ranks}
    for node, holdings in held.items():
        for item in holdings:
            fits = item.world in (0, len(home)) and item.rank in home
            if fits and (item.rank, item.step) not in unrestorable:
                saved = where[item.attempt, item.history, item.step]
                saved[item.rank].append(_source(item, node, home[item.rank]))
    complete = [saved for saved, ranks in where.items() if len(ranks) == len(home)]
    if not complete:
        return RestorePlan(step=-1, sources={})
    attempt, history, step = newest = max(complete)
    sources = {r: min(where[newest][r])[1] for r in sorted(home)}
    return RestorePlan(step=step, sources=sources, saved_attempt=attempt, saved_history=history)


def _plan_by_replica(
    world: Sequence[WorldNode],
    held: Mapping[str, tuple[Held, ...]],
    unrestorable: Collection[tuple[int, int]],
) -> RestorePlan:
    """Every rank gets one and the same state: of the newest attempt, and of its newest step."""
    doubted = {step for _, step in unrestorable}
    found = [
        ((item.attempt, item.step), item, node)
        for node, holdings in held.items()
        for item in holdings
        if item.replicated and item.step not in doubted
    ]
    if not found:
        return RestorePlan(step=-1, sources={})
    attempt, step = newest = max(key for key, _, _ in found)
    holders = [(item, node) for key, item, node in found if key == newest]
    sources = {
        rank: min(_source(item, node, member.node) for item, node in holders)[1]
        for member in world
        for rank in member.ranks
    }
    return RestorePlan(step=step, sources=sources, replica_attempt=attempt)


def _source(item: Held, node: str, home: str) -> tuple[int, str]:
    """(distance, source) of one holding as its rank's home node would use it."""
    if item.tier == "storage":
        return (2, "storage")
    return (0, "memory") if node == home else (1, f"peer:{node}")


def world_node(hello: Hello, node_rank: int) -> WorldNode:
    """An agent's node as member `node_rank` of a world."""
    return WorldNode(
        node=hello.node,
        node_rank=node_rank,
        address=hello.address,
        peer_port=hello.peer_port,
        nproc=hello.nproc_per_node,
    )


def unknown_node(node_rank: int, nproc: int, name: str = "") -> WorldNode:
    """A member whose node has not reported. No agent has this name, so a standby will replace it."""
    name = name or f"unknown-{node_rank}"
    return WorldNode(node=name, node_rank=node_rank, address="", peer_port=0, nproc=nproc)
