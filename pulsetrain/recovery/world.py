"""Who sits where in an attempt, and from where each rank's state comes back. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pulsetrain.protocol.messages import Held, Hello, WorldNode


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """`step` is -1 for a fresh start; `sources` maps each rank to memory, storage or peer:NODE."""

    step: int
    sources: Mapping[int, str]


def form_world(hellos: Iterable[Hello], nnodes: int) -> tuple[WorldNode, ...]:
    """The first world: the `nnodes` lowest node names, in order, so that the lowest is node_rank 0.

    Nodes that joined as standbys are taken only where the others do not suffice.
    """
    chosen = sorted(hellos, key=lambda hello: (hello.standby, hello.node))[:nnodes]
    in_order = sorted(chosen, key=lambda hello: hello.node)
    return tuple(place(hello, node_rank) for node_rank, hello in enumerate(in_order))


def replace_nodes(
    world: Sequence[WorldNode], healthy: Iterable[str], standbys: Iterable[Hello]
) -> tuple[WorldNode, ...]:
    """The world with each unhealthy node's place taken by a standby, lowest name first.

    Survivors keep their node_rank, so that each still has its own ranks' state in memory. A place for which
    no standby is left keeps the name of the node that it lost.
    """
    alive = set(healthy)
    spare = iter(sorted(standbys, key=lambda hello: hello.node))
    places = []
    for spot in world:
        if spot.node in alive or (hello := next(spare, None)) is None:
            places.append(spot)
        else:
            places.append(place(hello, spot.node_rank))
    return tuple(places)


def refresh(world: Sequence[WorldNode], hellos: Mapping[str, Hello]) -> tuple[WorldNode, ...]:
    """The same places with the addresses and ports of the agents' latest `Hello`."""
    return tuple(
        replace(p, address=hellos[p.node].address, peer_port=hellos[p.node].peer_port)
        if p.node in hellos
        else p
        for p in world
    )


def node_of(world: Iterable[WorldNode], rank: int) -> str:
    """The node that runs `rank`; "" where none does."""
    return next((p.node for p in world if rank in p.ranks), "")


def plan_restore(
    world: Sequence[WorldNode],
    held: Mapping[str, Iterable[Held]],
    unrestorable: Collection[tuple[int, int]] = (),
) -> RestorePlan:
    """The newest step that every rank of `world` can reach, and the nearest source for each rank.

    Own memory is nearest, then a copy in another node's memory, then storage. `held` maps reachable nodes to
    what they could give; `unrestorable` (rank, step) turned out to be whole nowhere. Step -1 with no sources
    where no step covers all ranks.
    """
    where: dict[int, dict[int, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
    home = {rank: spot.node for spot in world for rank in spot.ranks}
    for node, holdings in held.items():
        for item in holdings:
            if item.rank in home and (item.rank, item.step) not in unrestorable:
                where[item.step][item.rank].append(_source(item, node, home[item.rank]))
    complete = [step for step, ranks in where.items() if len(ranks) == len(home)]
    if not complete:
        return RestorePlan(step=-1, sources={})
    newest = max(complete)
    return RestorePlan(step=newest, sources={r: min(where[newest][r])[1] for r in sorted(home)})


def _source(item: Held, node: str, home: str) -> tuple[int, str]:
    """(distance, source) of one holding as its rank's home node would use it."""
    if item.tier == "storage":
        return (2, "storage")
    return (0, "memory") if node == home else (1, f"peer:{node}")


def place(hello: Hello, node_rank: int) -> WorldNode:
    """The place that an agent's node takes as `node_rank`."""
    return WorldNode(
        node=hello.node,
        node_rank=node_rank,
        address=hello.address,
        peer_port=hello.peer_port,
        nproc=hello.nproc_per_node,
    )


def unknown_place(node_rank: int, nproc: int) -> WorldNode:
    """A place whose node has not reported; no agent has this name, so a standby will take it."""
    return WorldNode(node=f"unknown-{node_rank}", node_rank=node_rank, address="", peer_port=0, nproc=nproc)
