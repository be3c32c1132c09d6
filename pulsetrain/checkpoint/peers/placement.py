"""Which machines hold whose checkpoint, and the exact probability that losing some of them loses nothing.

Group placement makes disjoint groups of k machines that hold each other's checkpoints. It is optimal where k
divides their number. Mixed placement (Gemini, SOSP'23, algorithm 1) puts the remaining machines into one ring
at the end. Machines are numbers from 0. A machine's own memory is always its first holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from math import comb

from pulsetrain.core.errors import UsageError

Holders = tuple[tuple[int, ...], ...]


def ring(machines: int, replicas: int) -> Holders:
    """Each machine sends to its `replicas - 1` left neighbours.

    >>> ring(4, 2)
    ((0, 3), (1, 0), (2, 1), (3, 2))
    """
    _check(machines, replicas)
    return _ring(range(machines), replicas)


def mixed(machines: int, replicas: int) -> Holders:
    """Groups of `replicas`. Where that does not divide the machines, the last ones are a ring.

    >>> mixed(5, 2)
    ((0, 1), (1, 0), (2, 4), (3, 2), (4, 3))
    """
    _check(machines, replicas)
    groups = machines // replicas if machines % replicas == 0 else machines // replicas - 1
    holders: list[tuple[int, ...]] = []
    for g in range(groups):
        members = range(g * replicas, (g + 1) * replicas)
        holders += [(m, *(o for o in members if o != m)) for m in members]
    rest = range(groups * replicas, machines)
    return (*holders, *_ring(rest, replicas)) if rest else tuple(holders)


def group(machines: int, replicas: int) -> Holders:
    """Disjoint groups. Raises `UsageError` where `replicas` does not divide `machines`."""
    _check(machines, replicas)
    if machines % replicas:
        raise UsageError(
            f"replicas = {replicas}: does not divide {machines} machines; allowed: mixed or ring"
        )
    return mixed(machines, replicas)


STRATEGIES = {"ring": ring, "mixed": mixed, "group": group}
ACROSS = "across"  # places ranks, see `backups`; the others place machines


def across_groups(tp: int, pp: int, dp: int) -> tuple[int, ...]:
    """For each rank the rank that backs it up, outside all of its parallel groups.

    So the eviction of a whole tensor-, pipeline- or data-parallel group never removes a checkpoint together
    with its replica: two ranks of one group agree in two of the three coordinates, a rank and its backup in
    at most one. Ranks are numbered with tp fastest, then dp, then pp. Raises `UsageError` where fewer than
    two of the sizes are above 1, because then no such rank exists.

    >>> across_groups(2, 4, 2)[8:10]
    (2, 3)
    """
    sizes = (tp, dp, pp)
    axes = [axis for axis in (1, 2, 0) if sizes[axis] > 1][:2]
    if len(axes) < 2:
        raise UsageError(f"tp = {tp}, pp = {pp}, dp = {dp}: backup outside each group needs two above 1")
    partners = []
    for rank in range(tp * dp * pp):
        at = [rank % tp, rank // tp % dp, rank // (tp * dp)]
        for axis in axes:
            at[axis] = (at[axis] + max(1, sizes[axis] // 2)) % sizes[axis]
        partners.append(at[0] + tp * (at[1] + dp * at[2]))
    return tuple(partners)


def backups(rank: int, home: Mapping[int, str], *, tp: int, pp: int, dp: int, copies: int) -> tuple[str, ...]:
    """The nodes that hold `rank`'s replicas when each is to survive the eviction of a whole parallel group.

    `home` maps ranks to nodes. The first is the node of its partner across groups. Where that is its own
    node, or more `copies` are wanted, nodes without a rank of any of its groups follow, then any other.

    >>> backups(8, {r: f"n{r}" for r in range(16)}, tp=2, pp=4, dp=2, copies=1)
    ('n2',)
    """
    partner = across_groups(tp, pp, dp)[rank] if rank < tp * pp * dp else rank
    outside = [home[r] for r in sorted(home) if not _share_group(rank, r, tp=tp, dp=dp)]
    touched = {home[r] for r in home if _share_group(rank, r, tp=tp, dp=dp)}
    clear = [node for node in outside if node not in touched]
    first = [home[partner]] if partner in home else []
    order = dict.fromkeys([*first, *clear, *outside, *(home[r] for r in sorted(home))])
    return tuple(node for node in order if node != home.get(rank))[:copies]


def _share_group(a: int, b: int, *, tp: int, dp: int) -> bool:
    """One group has both: they agree in two of their three coordinates at least."""
    first, second = ((r % tp, r // tp % dp, r // (tp * dp)) for r in (a, b))
    return sum(x == y for x, y in zip(first, second, strict=True)) >= 2


def storage_sets(holders: Holders) -> frozenset[frozenset[int]]:
    """The sets of machines that hold one checkpoint each. The loss of a whole set loses it."""
    return frozenset(frozenset(h) for h in holders)


def survives(holders: Holders, failed: frozenset[int]) -> bool:
    """Every machine's checkpoint still has a holder."""
    return not any(s <= failed for s in storage_sets(holders))


def recovery_probability(holders: Holders, failures: int) -> Fraction:
    """Exact probability that the loss of `failures` machines, all sets equally likely, loses no checkpoint.

    It counts the surviving sets of each connected part of the placement by size and multiplies the
    polynomials. So a thousand machines take no longer than their largest part.
    """
    machines = len(holders)
    if not 0 <= failures <= machines:
        raise UsageError(f"failures = {failures}: allowed: 0 to {machines}")
    ways, by_shape = [1], {}
    for part in _parts(storage_sets(holders)):
        shape = _shape(part)
        if shape not in by_shape:
            by_shape[shape] = _surviving_by_size(part)
        ways = _times(ways, by_shape[shape])
    return Fraction(ways[failures] if failures < len(ways) else 0, comb(machines, failures))


def group_formula(machines: int, replicas: int, failures: int) -> Fraction:
    """Closed form for group placement at any number of failures, by inclusion and exclusion over lost
    groups."""
    groups = machines // replicas
    total = sum(
        (-1) ** j * comb(groups, j) * comb(machines - j * replicas, failures - j * replicas)
        for j in range(min(groups, failures // replicas) + 1)
    )
    return Fraction(total, comb(machines, failures))


def gemini_bound(machines: int, replicas: int, failures: int) -> Fraction:
    """Gemini's corollary 1: exact below twice `replicas` failures, a lower bound from there on."""
    if failures < replicas:
        return Fraction(1)
    lost = Fraction(machines, replicas) * comb(machines - replicas, failures - replicas)
    return 1 - lost / comb(machines, failures)


def by_enumeration(holders: Holders, failures: int) -> Fraction:
    """The same probability by enumeration of all sets, for small numbers and for tests."""
    sets = [frozenset(s) for s in combinations(range(len(holders)), failures)]
    return Fraction(sum(survives(holders, s) for s in sets), len(sets))


def peers_of(node: str, nodes: Sequence[str], replicas: int, strategy: str) -> tuple[str, ...]:
    """The nodes that hold `node`'s replicas, nearest first. Fewer where there are not enough nodes."""
    count = min(replicas, len(nodes))
    if node not in nodes or count < 2:
        return ()
    choose = STRATEGIES[strategy]
    if strategy == "group" and len(nodes) % count:
        choose = mixed  # a world that lost a node still places every replica
    return tuple(nodes[m] for m in choose(len(nodes), count)[nodes.index(node)][1:])


def _check(machines: int, replicas: int) -> None:
    if not 1 <= replicas <= machines:
        raise UsageError(f"replicas = {replicas}: allowed: 1 to the number of machines ({machines})")


def _ring(members: Sequence[int], replicas: int) -> Holders:
    size = len(members)
    return tuple(tuple(members[(i - j) % size] for j in range(replicas)) for i in range(size))


def _parts(sets: frozenset[frozenset[int]]) -> list[list[frozenset[int]]]:
    """Groups of sets that share machines, directly or through other sets."""
    parts: list[tuple[set[int], list[frozenset[int]]]] = []
    for new in sorted(sets, key=sorted):
        touching = [p for p in parts if p[0] & new]
        parts = [p for p in parts if not p[0] & new]
        union = set(new).union(*(p[0] for p in touching))
        parts.append((union, [new, *(s for p in touching for s in p[1])]))
    return [sets_of for _, sets_of in parts]


def _shape(part: Sequence[frozenset[int]]) -> frozenset[frozenset[int]]:
    """The part with its machines renumbered from 0, so that parts of equal shape are counted once."""
    number: Mapping[int, int] = {m: i for i, m in enumerate(sorted(frozenset().union(*part)))}
    return frozenset(frozenset(number[m] for m in s) for s in part)


def _surviving_by_size(part: Sequence[frozenset[int]]) -> list[int]:
    """How many sets of 0, 1, 2, ... machines of this part contain none of its storage sets.

    It walks over the machines and remembers only which storage sets could still fail as a whole. In rings and
    groups these are few.
    """
    machines = sorted(frozenset().union(*part))
    last = {s: max(s) for s in part}
    states: dict[frozenset[frozenset[int]], list[int]] = {frozenset(part): [1]}  # sets still complete so far
    for machine in machines:
        after: dict[frozenset[frozenset[int]], list[int]] = {}
        for alive, ways in states.items():
            spared = frozenset(s for s in alive if machine not in s)
            _add(after, spared, ways)
            if not any(machine in s and last[s] == machine for s in alive):
                _add(after, alive, [0, *ways])
        states = after
    total: list[int] = [0]
    for ways in states.values():
        total = _plus(total, ways)
    return total


def _add(
    states: dict[frozenset[frozenset[int]], list[int]], key: frozenset[frozenset[int]], ways: list[int]
) -> None:
    states[key] = _plus(states.get(key, [0]), ways)


def _plus(a: list[int], b: list[int]) -> list[int]:
    if len(a) < len(b):
        a, b = b, a
    return [x + (b[i] if i < len(b) else 0) for i, x in enumerate(a)]


def _times(a: list[int], b: list[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out
