"""How many nodes each replica of a job has, where a replica may go on without some of its nodes. Pure."""

from __future__ import annotations

REPLICA_DEGREES = "PULSETRAIN_REPLICA_DEGREES"
"""Environment of a rank: the number of ranks of each replica, as 4,3. Only where they may be unequal."""


def unit_sizes(nodes: int, unit: int, least: int) -> tuple[int, ...]:
    """Deal `nodes` over as few units of at most `unit` nodes as hold them, evenly, the larger ones first.

    Nothing where a unit would have fewer than `least`, and for no nodes. Every process that knows the number
    of nodes comes to the same answer.

    >>> unit_sizes(7, unit=4, least=3), unit_sizes(6, unit=4, least=3), unit_sizes(5, unit=4, least=3)
    ((4, 3), (3, 3), ())
    """
    if not can_deal(nodes, unit, least):
        return ()
    units = -(-nodes // unit)
    share, more = divmod(nodes, units)
    return tuple(share + (number < more) for number in range(units))


def can_deal(nodes: int, unit: int, least: int) -> bool:
    """Whether `unit_sizes` has an answer. It costs the same for any number: every agent that joins asks."""
    return nodes >= max(1, -(-nodes // unit) * least)
