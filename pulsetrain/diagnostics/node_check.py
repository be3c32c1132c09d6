"""A check of many nodes by rounds of all-gathers: first who is faulty, then who is slow. Pure.

Whoever runs the rounds asks `NodeCheck` for the groups of the next one, and hands their results back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pulsetrain.diagnostics import faulty_nodes
from pulsetrain.diagnostics.compare import slow_all_gathers, slow_products, slowest_beside_fastest
from pulsetrain.diagnostics.faulty_nodes import FaultVerdict
from pulsetrain.diagnostics.rounds import NO_SWITCHES, Group, GroupResult, pairs_between, passed
from pulsetrain.diagnostics.slow_nodes import SlowSearch, SlowTest, SlowVerdict

LEAST_LINKS = 2  # between two switches, before these are said to be at fault
LEAST_TWICE = 4  # with fewer nodes a second time does not tell the members of a pair apart


@dataclass(frozen=True, kw_only=True)
class Level:
    """How thorough a check is, and what it is able to find.

    `limit_s` is for all rounds together. `failures` is beside how many good nodes a faulty node must fail.
    Each member of a group gathers `payload_bytes`. Without a `slow_test` slow nodes are only noted. With
    `whole_node` all GPUs and all ports of each node send to each other first. With `between_switches` nodes
    that passed under their switch are paired with some under others.
    """

    name: str
    limit_s: float
    failures: int
    payload_bytes: int
    finds: str
    slow_test: SlowTest | None = None
    whole_node: bool = False
    between_switches: bool = False


LIGHT = Level(
    name="light",
    limit_s=9.0,
    failures=2,
    payload_bytes=1 << 20,
    finds="faulty nodes and links. Nodes that are 1.5 times as slow as most are noted.",
)
FULL = Level(
    name="full",
    limit_s=110.0,
    failures=3,
    payload_bytes=16 << 20,
    finds="faulty nodes and links, GPUs that fail or are slow beside others of their node, switches between "
    "which nothing passes, and nodes that are 1.2 times as slow as others of their kind.",
    slow_test=SlowTest(),
    whole_node=True,
    between_switches=True,
)
LEVELS: Mapping[str, Level] = MappingProxyType({level.name: level for level in (LIGHT, FULL)})


@dataclass(frozen=True, kw_only=True)
class NodeVerdict:
    """What a check found. `noted` maps nodes to a ratio, by measure: a hint of the light level.

    `slow` is None where the level does not look for slow nodes. `rounds` and `groups` say what it took.
    `between` maps pairs of switches to why nothing passes between them. `busy` are nodes whose memory others
    use. Nothing is known about them.
    """

    level: Level
    faults: FaultVerdict
    slow: SlowVerdict | None
    noted: Mapping[str, Mapping[str, float]]
    rounds: int
    groups: int
    between: Mapping[Group, str] = field(default_factory=dict)
    busy: Group = ()

    @property
    def state(self) -> str:
        """One of found, inconclusive and healthy. Notes do not count."""
        if self.faults.state == "found" or (self.slow and self.slow.slow):
            return "found"
        return "inconclusive" if self.reason else "healthy"

    @property
    def reason(self) -> str:
        """Why something is not known, "" where all is."""
        busy = f"{', '.join(self.busy)}: others use the memory" if self.busy else ""
        return "; ".join(w for w in (self.faults.reason, self.slow.reason if self.slow else "", busy) if w)

    def row(self) -> dict[str, object]:
        """The verdict as JSON-able evidence."""
        slow = self.slow.slow if self.slow else {}
        return {
            "level": self.level.name,
            "finds": self.level.finds,
            "state": self.state,
            "reason": self.reason,
            "faulty": dict(self.faults.faulty),
            "links": [{"nodes": list(pair), "reason": why} for pair, why in self.faults.links.items()],
            "between": [{"switches": list(pair), "reason": why} for pair, why in self.between.items()],
            "undecided": list(self.faults.undecided),
            "busy": list(self.busy),
            "slow": {node: vars(found) for node, found in slow.items()},
            "maybe_slow": dict(self.slow.undecided) if self.slow else {},
            "noted": {measure: dict(nodes) for measure, nodes in self.noted.items()},
            "rounds": self.rounds,
            "groups": self.groups,
        }


class NodeCheck:
    """Plans the rounds of one check and judges them.

    `kinds` maps every node, in order, to what kind it is ("" if unknown). Neighbours of one kind and under
    the same one of `switches` are paired first. `seed` decides who is paired with whom when slow nodes are
    looked for.

    A node whose memory others use takes part in no further round, and its groups have told nothing.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        level: Level,
        *,
        seed: int = 0,
        switches: Mapping[str, str] = NO_SWITCHES,
    ) -> None:
        self._level, self._switches = level, switches
        self._nodes = sorted(kinds, key=lambda node: (kinds[node], switches.get(node, "")))
        self._went_between = not level.between_switches
        self._results: list[GroupResult] = []
        self._busy: set[str] = set()
        self._rounds = 0
        self._slow = SlowSearch(kinds, test=level.slow_test, seed=seed) if level.slow_test else None
        self._for_slow = False

    def next_round(self) -> list[Group]:
        """Return the groups of the next round. Empty once all is known, or nothing more can be."""
        groups = faulty_nodes.next_round(
            self._able(), self._telling(), failures=self._level.failures, switches=self._switches
        )
        if not groups and not self._went_between and self._results:
            self._went_between = True
            groups = self._between_switches()
        self._for_slow = not groups and self._slow is not None
        if self._slow is None:
            return [*groups, *self._second_times(groups)]
        if groups:
            return groups
        faults = self._faults()
        self._slow.leave_out([*faults.faulty, *faults.undecided, *self._busy])
        return self._slow.next_round() if self.any_passed and not faults.noisy else []

    def take(self, results: Sequence[GroupResult]) -> None:
        """Take in the results of the round that was asked for."""
        self._rounds += 1
        self._results += results
        self._busy.update(node for result in results for node in result.busy)
        if self._for_slow and self._slow is not None:
            self._slow.take(results)

    @property
    def any_passed(self) -> bool:
        """Whether any group has passed."""
        return any(result.ok for result in self._results)

    @property
    def results(self) -> Sequence[GroupResult]:
        """All results so far."""
        return self._results

    def verdict(self) -> NodeVerdict:
        """Return what is known after the rounds so far."""
        results = self._results
        noted = {"all_gathers": slow_all_gathers(results), "products": slow_products(results)}
        return NodeVerdict(
            level=self._level,
            faults=self._faults(),
            slow=self._slow.verdict() if self._slow else None,
            noted=noted if self._slow is None else {},
            rounds=self._rounds,
            groups=len(results),
            between=bad_between(results, self._faults(), self._switches),
            busy=tuple(sorted(self._busy)),
        )

    def _able(self) -> list[str]:
        return [node for node in self._nodes if node not in self._busy]

    def _telling(self) -> list[GroupResult]:
        return [result for result in self._results if self._busy.isdisjoint(result.members)]

    def _between_switches(self) -> list[Group]:
        """Pairs of nodes under different switches, of those that passed under their own."""
        if self._faults().noisy:
            return []
        good = passed(self._telling())
        return pairs_between([node for node in self._able() if node in good], self._switches)

    def _faults(self) -> FaultVerdict:
        return faulty_nodes.judge(self._able(), self._telling(), failures=self._level.failures)

    def _second_times(self, groups: Sequence[Group]) -> list[Group]:
        """Return pairs of good nodes that are free in the second round: slow ones are noted by two times."""
        if self._rounds != 1 or len(self._nodes) < LEAST_TWICE:
            return []
        asked = {node for group in groups for node in group}
        return slowest_beside_fastest(self._telling(), set(self._able()) - asked)


def bad_between(
    results: Sequence[GroupResult], faults: FaultVerdict, switches: Mapping[str, str]
) -> dict[Group, str]:
    """Map pairs of switches to why nothing passes between them.

    Two links at least are named there, and no group with nodes under both has passed.

    >>> switches = {"a": "s0", "b": "s0", "c": "s1", "d": "s1"}
    >>> links = {("a", "c"): "failed together 3 times", ("b", "d"): "failed together 3 times"}
    >>> bad_between([], FaultVerdict(links=links), switches)
    {('s0', 's1'): 'a and c, b and d: failed each time, and pass under their own switches'}
    """
    bad: dict[Group, list[str]] = {}
    for link in faults.links:
        pair = _switches_of(link, switches)
        if len(pair) == 2:
            bad.setdefault(pair, []).append(" and ".join(link))
    good = {_switches_of(result.members, switches) for result in results if result.ok}
    return {
        pair: f"{', '.join(links)}: failed each time, and pass under their own switches"
        for pair, links in bad.items()
        if len(links) >= LEAST_LINKS and pair not in good
    }


def _switches_of(members: Group, switches: Mapping[str, str]) -> Group:
    return tuple(sorted({switches[node] for node in members if switches.get(node)}))
