"""Rounds of checks in groups: what one group answered, and what was timed. Pure.

A round is a set of groups without a common node. All groups of a round run at the same time. Each does one
all-gather (`diagnostics.all_gather`) and answers whether it passed, and how long it took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """Result of one group's all-gather. `round` counts from 0.

    `seconds` is the sum over its repetitions and has no meaning if not `ok`. `error` is the first member's
    reason in one line. `store` is the node at whose store the group met, "" if that is none of them.
    `own_times_s` has what each member does alone, by node and name of the measure. `gpus` has the UUID of the
    GPU that each member used, by node, and nothing where they used processors.
    `took_s` is how long the group took with all that it had to set up, until the last member passed or the
    first one failed. `given_up`: the time was up before any member had failed by itself. `unreached` are
    members that did not reach the store, `busy` those that failed because others use their memory.
    """

    members: Group
    ok: bool
    seconds: float
    error: str = ""
    round: int = 0
    store: str = ""
    own_times_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    given_up: bool = False
    unreached: Group = ()
    busy: Group = ()

    def row(self) -> dict[str, object]:
        """The result as JSON-able evidence, without what members did alone."""
        fields = {name: value for name, value in vars(self).items() if name != "own_times_s"}
        return fields | {"members": list(self.members)}


NO_SWITCHES: Mapping[str, str] = MappingProxyType({})


def pairs_of(nodes: Sequence[str], switches: Mapping[str, str] = NO_SWITCHES) -> list[Group]:
    """Pair neighbours in the order given. An odd one joins the last pair. Fewer than two nodes give no group.

    Neighbours are under one switch, as far as `switches` knows. Nodes that are alone under theirs are paired
    with each other.

    >>> pairs_of(["1", "2", "3", "4", "5"])
    [('1', '2'), ('3', '4', '5')]
    >>> pairs_of("abcdef", {"a": "s0", "b": "s1", "c": "s0", "d": "s1", "e": "s2", "f": "s3"})
    [('a', 'c'), ('b', 'd'), ('e', 'f')]
    """
    cells: dict[str, list[str]] = {}
    for node in nodes:
        cells.setdefault(switches.get(node, ""), []).append(node)
    alone = [node for cell in cells.values() if len(cell) == 1 for node in cell]
    pairs = [pair for cell in cells.values() for pair in _neighbours(cell)] + _neighbours(alone)
    return _joined(pairs, alone[0]) if len(alone) == 1 else pairs


def _neighbours(nodes: Sequence[str]) -> list[Group]:
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and pairs:
        pairs[-1] += (nodes[-1],)
    return pairs


def _joined(groups: Sequence[Group], node: str) -> list[Group]:
    """The groups with one more node: in the last pair, or with one node of the last group of three."""
    if not groups:
        return []
    place = next((i for i in reversed(range(len(groups))) if len(groups[i]) == 2), len(groups) - 1)
    whole = (*groups[place], node)
    parts = [whole] if len(whole) == 3 else [whole[:2], whole[2:]]
    return [*groups[:place], *parts, *groups[place + 1 :]]


def pairs_between(nodes: Sequence[str], switches: Mapping[str, str]) -> list[Group]:
    """Pair nodes under different switches, each node once at most. A node without a known switch is left out.

    A switch comes to meet those first that it has met the least.

    >>> pairs_between("abcdef", {"a": "s0", "b": "s0", "c": "s1", "d": "s1", "e": "s2", "f": "s2"})
    [('a', 'd'), ('e', 'b'), ('c', 'f')]
    """
    met: Counter[frozenset[str]] = Counter()
    left: dict[str, list[str]] = {}
    for node in nodes:
        if switches.get(node):
            left.setdefault(switches[node], []).append(node)
    pairs: list[Group] = []
    while len(full := sorted((s for s in left if left[s]), key=lambda s: -len(left[s]))) > 1:
        first = full[0]
        second = min(full[1:], key=lambda s: met[frozenset((first, s))])
        met[frozenset((first, second))] += 1
        pairs.append((left[first].pop(0), left[second].pop()))
    return pairs


def passed(results: Iterable[GroupResult]) -> set[str]:
    """Return the nodes that were in a group that passed."""
    return {node for result in results if result.ok for node in result.members}


def best_times(results: Iterable[GroupResult]) -> dict[str, float]:
    """Return each node's shortest time over the groups in which it passed, in seconds."""
    times: dict[str, float] = {}
    for result in results:
        for node in result.members if result.ok else ():
            times[node] = min(times.get(node, result.seconds), result.seconds)
    return times
