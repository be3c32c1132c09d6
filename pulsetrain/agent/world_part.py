"""The world of a launch, as far as this node was told it."""

from __future__ import annotations

from pulsetrain.protocol.messages import Start, WorldNode

UNKNOWN = ""
"""name of a node that this one was not told"""


def world_of(start: Start) -> tuple[WorldNode, ...]:
    """All nodes by node rank. Those that this one was not told have no name and no address."""
    if not start.world_nodes:
        return start.world
    known = {node.node_rank: node for node in start.world}
    nproc = start.world[0].nproc
    return tuple(
        known.get(rank) or WorldNode(node=UNKNOWN, node_rank=rank, address="", peer_port=0, nproc=nproc)
        for rank in range(start.world_nodes)
    )
