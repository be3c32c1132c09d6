"""How many nodes a job may run on, and who is in a world of another size. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.unit_sizes import can_deal, unit_sizes
from pulsetrain.protocol.messages import Hello, WorldNode
from pulsetrain.recovery.world import world_node


@dataclass(frozen=True, kw_only=True)
class WorldSizes:
    """Numbers of nodes that a job may run on: multiples of `unit` from `least` to `most`.

    A unit is what must stay together, as the nodes of a whole pipeline do. With `unit_least` above 0 a unit
    may go on with so few nodes.
    """

    least: int
    most: int
    unit: int = 1
    unit_least: int = 0

    def __post_init__(self) -> None:
        """Raises `UsageError` where no size is allowed."""
        if not 1 <= self.least <= self.most or self.unit < 1 or self.unit_least < 0:
            raise UsageError(f"--nnodes={self.least}:{self.most}: allowed: MIN:MAX with 1 <= MIN <= MAX")
        if self.unit_least > self.unit:
            raise UsageError(f"--node-unit-min={self.unit_least}: allowed: 1 to --node-unit={self.unit}")
        if not self.fit(self.most):
            between = f"{self.least} to {self.most}" if self.least < self.most else f"{self.most}"
            raise UsageError(f"--node-unit={self.unit}: no multiple of it is allowed by --nnodes: {between}")

    @classmethod
    def of(cls, hello: Hello) -> WorldSizes:
        """The sizes that an agent was started with."""
        return cls(
            least=hello.min_nnodes or hello.nnodes,
            most=hello.nnodes,
            unit=hello.node_unit,
            unit_least=hello.node_unit_min,
        )

    @property
    def elastic(self) -> bool:
        """Whether there is more than one size."""
        return self.smallest < self.largest

    @property
    def smallest(self) -> int:
        """The fewest nodes that are enough."""
        return next(size for size in range(self.least, self.most + 1) if self._allows(size))

    @property
    def largest(self) -> int:
        """The most nodes that are used."""
        return self.fit(self.most)

    @property
    def unequal(self) -> bool:
        """Whether units may have different numbers of nodes."""
        return 0 < self.unit_least < self.unit

    def units(self, nodes: int) -> tuple[int, ...]:
        """How many nodes each unit has in a world of this size. Nothing where no such world is allowed.

        >>> WorldSizes(least=4, most=8, unit=4, unit_least=3).units(7)
        (4, 3)
        >>> WorldSizes(least=4, most=8, unit=4).units(7)
        ()
        """
        return unit_sizes(nodes, self.unit, self.unit_least or self.unit)

    def fit(self, nodes: int) -> int:
        """The largest allowed size that so many nodes can make up. 0 where they are too few.

        >>> [WorldSizes(least=2, most=9, unit=2).fit(n) for n in (1, 2, 3, 7, 20)]
        [0, 2, 2, 6, 8]
        """
        sizes = range(min(nodes, self.most), self.least - 1, -1)
        return next((size for size in sizes if self._allows(size)), 0)

    def _allows(self, nodes: int) -> bool:
        """Whether a world may have this size."""
        return can_deal(nodes, self.unit, self.unit_least or self.unit)

    def __str__(self) -> str:
        """As the flags say it."""
        nodes = f"{self.least}:{self.most}" if self.least < self.most else f"{self.most}"
        if self.unit == 1:
            return nodes
        least = f", of {self.unit_least} at least" if self.unequal else ""
        return f"{nodes} in units of {self.unit}{least}"


def resize(
    world: Sequence[WorldNode],
    size: int,
    healthy: Collection[str],
    standbys: Iterable[Hello],
    sizes: WorldSizes,
) -> tuple[WorldNode, ...]:
    """A world of `size` nodes. Survivors keep their order, standbys follow in order of their names.

    Where there are more survivors than `size`, the last ones are left out. Where there are too few nodes, the
    world is smaller than `size`. Where `sizes` allow units of unequal size, the fullest ones come first.
    """
    healthy = set(healthy)
    survivors = [member for member in world if member.node in healthy]
    if sizes.unequal:
        survivors = _fullest_first(world, survivors, sizes)
    joined = sorted(standbys, key=lambda hello: hello.node)
    members = [*survivors, *(world_node(hello, 0) for hello in joined)][:size]
    return tuple(replace(member, node_rank=rank) for rank, member in enumerate(members))


def _fullest_first(
    world: Sequence[WorldNode], survivors: Sequence[WorldNode], sizes: WorldSizes
) -> list[WorldNode]:
    """The survivors by unit, so that few of them change their unit: larger units have the lower ranks."""
    ends = list(accumulate(sizes.units(len(world))))
    units: list[list[WorldNode]] = [[] for _ in (*ends, 0)]
    left = {member.node for member in survivors}
    for place, member in enumerate(world):
        if member.node in left:
            units[bisect_right(ends, place)].append(member)
    return [member for unit in sorted(units, key=len, reverse=True) for member in unit]
