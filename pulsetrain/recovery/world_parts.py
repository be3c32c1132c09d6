"""Which nodes of a world each agent is told at a launch.

If every agent were told all nodes, the bytes of a launch would grow with the square of their number. An agent
uses few of them: those that keep its ranks' replicas, and those that its ranks restore from. So agents of a
large world are told their neighbours by node rank and their sources. One that needs another node says so, and
gets the whole world. That text is the same for all, so it is made once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pulsetrain.protocol.messages import World, WorldNode
from pulsetrain.recovery.nodes import Node

NEEDS_WORLD = "needs_world"
"""Field of the reply to `Start`: the agent needs nodes that it was not told. It has launched no rank then."""
WHOLE_UP_TO = 64
"""nodes, up to which a world is told whole"""
NEAR = 8
"""neighbours on each side. With `checkpoint.replicas` up to 4, replicas go no further."""


class WorldParts:
    """The world of one launch, and what each node is told of it. All are told the `holders`."""

    def __init__(self, world: Sequence[WorldNode], holders: tuple[WorldNode, ...] = ()) -> None:
        self.whole, self.holders = World(world), holders
        self._places = {member.node: place for place, member in enumerate(self.whole)}

    def __contains__(self, node: str) -> bool:
        """Whether a node of this name is in the world."""
        return node in self._places

    def of(self, node: Node, member: WorldNode, sources: Collection[str]) -> tuple[WorldNode, ...]:
        """What `node` is told at first. `sources` are where its ranks restore from."""
        count = len(self.whole)
        if count <= WHOLE_UP_TO or not node.hello.takes_world_part or node.needs_world:
            return self.whole
        here = self._places[member.node]
        named = (source.removeprefix("peer:") for source in sources)
        places = {self._places[name] for name in named if name in self._places}
        places.update((here + distance) % count for distance in range(-NEAR, NEAR + 1))
        return tuple(self.whole[place] for place in sorted(places))
