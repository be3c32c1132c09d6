"""How many nodes a job may run on, and who is in a world of another size. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Hello, WorldNode
from pulsetrain.recovery.world import world_node


@dataclass(frozen=True, kw_only=True)
class WorldSizes:
    """Numbers of nodes that a job may run on: multiples of `unit` from `least` to `most`.

    A unit is what must stay together, as the nodes of a whole pipeline do.
    """

    least: int
    most: int
    unit: int = 1

    def __post_init__(self) -> None:
        """Raises `UsageError` where no size is allowed."""
        if not 1 <= self.least <= self.most or self.unit < 1:
            raise UsageError(f"--nnodes={self.least}:{self.most}: allowed: MIN:MAX with 1 <= MIN <= MAX")
        if not self.fit(self.most):
            between = f"{self.least} to {self.most}" if self.least < self.most else f"{self.most}"
            raise UsageError(f"--node-unit={self.unit}: no multiple of it is allowed by --nnodes: {between}")

    @classmethod
    def of(cls, hello: Hello) -> WorldSizes:
        """The sizes that an agent was started with."""
        return cls(least=hello.min_nnodes or hello.nnodes, most=hello.nnodes, unit=hello.node_unit)

    @property
    def elastic(self) -> bool:
        """Whether there is more than one size."""
        return self.smallest < self.largest

    @property
    def smallest(self) -> int:
        """The fewest nodes that are enough."""
        return -(-self.least // self.unit) * self.unit

    @property
    def largest(self) -> int:
        """The most nodes that are used."""
        return self.most // self.unit * self.unit

    def fit(self, nodes: int) -> int:
        """The largest allowed size that so many nodes can make up. 0 where they are too few.

        >>> [WorldSizes(least=2, most=9, unit=2).fit(n) for n in (1, 2, 3, 7, 20)]
        [0, 2, 2, 6, 8]
        """
        size = min(nodes, self.most) // self.unit * self.unit
        return size if size >= self.least else 0

    def __str__(self) -> str:
        """As the flags say it."""
        nodes = f"{self.least}:{self.most}" if self.least < self.most else f"{self.most}"
        return nodes if self.unit == 1 else f"{nodes} in units of {self.unit}"


def resize(
    world: Sequence[WorldNode], size: int, healthy: Collection[str], standbys: Iterable[Hello]
) -> tuple[WorldNode, ...]:
    """A world of `size` nodes. Survivors keep their order, standbys follow in order of their names.

    Where there are more survivors than `size`, the last ones are left out. Where there are too few nodes, the
    world is smaller than `size`.
    """
    survivors = [member for member in world if member.node in healthy]
    joined = sorted(standbys, key=lambda hello: hello.node)
    members = [*survivors, *(world_node(hello, 0) for hello in joined)][:size]
    return tuple(replace(member, node_rank=rank) for rank, member in enumerate(members))
