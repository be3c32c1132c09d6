"""Which nodes a node sends its ranks' checkpoints to."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.checkpoint.peers.placement import ACROSS, backups, peers_of
from pulsetrain.protocol.messages import WorldNode


def receivers(
    world: Sequence[WorldNode], node_rank: int, placement: str, *, copies: int, shape: tuple[int, int, int]
) -> dict[str, frozenset[int] | None]:
    """The nodes that node `node_rank` sends replicas to, with the ranks that each is sent. None: all.

    `world` is in the order of node ranks. There are `copies` besides the rank's own. `shape` is tp, pp, dp
    for a placement across groups.
    """
    here = world[node_rank]
    if placement != ACROSS:
        names = [node.node for node in world]
        return dict.fromkeys(peers_of(here.node, names, copies + 1, placement))
    home, (tp, pp, dp) = home_of(world), shape
    ranks_by_node: dict[str, set[int]] = {}
    for rank in here.ranks:
        for node in backups(rank, home, tp=tp, pp=pp, dp=dp, copies=copies):
            ranks_by_node.setdefault(node, set()).add(rank)
    return {node: frozenset(ranks) for node, ranks in ranks_by_node.items()}


def home_of(world: Sequence[WorldNode]) -> dict[int, str]:
    """The node of each rank, without those of nodes that are not known."""
    return {rank: node.node for node in world if node.node for rank in node.ranks}
