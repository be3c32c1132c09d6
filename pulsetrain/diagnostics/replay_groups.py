"""Which node makes training fail: parts of it are replayed in groups of nodes, and the groups change. Pure.

This is dual-phase replay of ByteRobust (arXiv 2509.16293, section 4). Node x is in the first phase in group
x // m, in the second one in group x mod n. With m <= n no two nodes are together twice. So one faulty node is
where a group that failed first and one that failed second meet. Nodes that are still in doubt train once more
beside nodes that have passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsetrain.diagnostics.rounds import Group

MOST_PHASES = 4
LEAST_FAILURES = 2
"""groups in which a node must have failed, each time beside other nodes that have passed elsewhere"""
LARGEST_SHARE = 4
"""one in so many nodes may be named. More have something else in common"""


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """How one group's replay ended. `error` is the reason of the first member that failed."""

    members: Group
    ok: bool
    error: str = ""
    phase: int = 0

    def row(self) -> dict[str, object]:
        """The result as JSON-able evidence."""
        return vars(self) | {"members": list(self.members)}


@dataclass(frozen=True, kw_only=True)
class ReplayVerdict:
    """`named` maps nodes to the reason. `suspects` are nodes in doubt. `reason`: why nobody is named."""

    named: Mapping[str, str] = field(default_factory=dict)
    suspects: Sequence[str] = ()
    reason: str = ""


def first_groups(nodes: Sequence[str], size: int) -> list[Group]:
    """Neighbours together. Nodes that do not fill a group are left out.

    >>> first_groups("abcdefg", 2)
    [('a', 'b'), ('c', 'd'), ('e', 'f')]
    """
    return [tuple(nodes[i : i + size]) for i in range(0, len(nodes) - size + 1, size)]


def second_groups(nodes: Sequence[str], size: int) -> list[Group]:
    """Each of them has one node at most of each first group, where there are as many groups as `size`.

    >>> second_groups("abcdefg", 2)
    [('a', 'd'), ('b', 'e'), ('c', 'f')]
    """
    number = len(nodes) // size
    return [tuple(nodes[i + number * k] for k in range(size)) for i in range(number)]


def group_size(nodes: int, wanted: int) -> int:
    """How many nodes train together. 0 where two different groupings are not possible.

    With `wanted` 0 two nodes do, or each by itself where there are fewer than four.

    >>> group_size(64, 0), group_size(3, 0), group_size(16, 4), group_size(15, 4), group_size(1, 0)
    (2, 1, 4, 0, 0)
    """
    size = wanted or (2 if nodes >= 4 else 1)
    return size if nodes >= max(2, size * size) else 0


class ReplayPlan:
    """Plans the phases of one replay in groups of `size`, and judges them."""

    def __init__(self, nodes: Sequence[str], size: int) -> None:
        self._nodes, self._size = sorted(nodes), size
        self._met: dict[str, set[str]] = {node: set() for node in self._nodes}
        self.phases = 0
        self.results: list[ReplayResult] = []

    def next_phase(self) -> list[Group]:
        """The groups that train at the same time now. [] where nothing more can be learned."""
        if self.phases and not self._passed:
            return []
        if self.phases < 2:
            groups = (first_groups, second_groups)[self.phases](self._nodes, self._size)
        else:
            groups = self._beside_passed() if self.phases < MOST_PHASES else []
        self.phases += bool(groups)
        for group in groups:
            for node in group:
                self._met[node].update(group)
        return groups

    def take(self, results: Iterable[ReplayResult]) -> None:
        """The results of the phase. Those of groups that say nothing are left out."""
        self.results += results

    @property
    def _passed(self) -> list[str]:
        passed = {node for result in self.results if result.ok for node in result.members}
        return [node for node in self._nodes if node in passed]

    def _beside_passed(self) -> list[Group]:
        """Each node that is in doubt with nodes that have passed and that it has not met yet.

        Those come first that have never failed.
        """
        failures = Counter(node for result in self.results if not result.ok for node in result.members)
        free = sorted(self._passed, key=lambda node: failures[node])
        groups: list[Group] = []
        for node in [n for n in self._nodes if n not in free and not self._is_sure(n)]:
            companions = [n for n in free if n not in self._met[node]][: self._size - 1]
            if len(companions) == self._size - 1:
                groups.append((node, *companions))
                free = [n for n in free if n not in companions]
        return groups

    def _is_sure(self, node: str) -> bool:
        """Whether a node failed often enough, and each time nobody else can have been the reason."""
        passed = set(self._passed)
        failed = [{*r.members} - {node} for r in self.results if not r.ok and node in r.members]
        alone = [companions for companions in failed if companions <= passed]
        return node not in passed and len(alone) >= LEAST_FAILURES

    def verdict(self) -> ReplayVerdict:
        """Who is named, or why nobody is."""
        failed = [result for result in self.results if not result.ok]
        if not failed:
            return ReplayVerdict(reason=self._and_unjudged("the fault did not come again"))
        if not self._passed:
            return ReplayVerdict(reason=self._and_unjudged(_all_failed(len(failed))))
        named = {node: self._reason(node) for node in self._nodes if self._is_sure(node)}
        if len(named) > max(1, len(self._nodes) // LARGEST_SHARE):
            why = f"{len(named)} of {len(self._nodes)} nodes failed: they have something in common"
            return ReplayVerdict(suspects=sorted(named), reason=why)
        suspects = self._suspects(failed) - named.keys()
        why = "" if named else f"no node failed each time: {len(failed)} of {len(self.results)} groups failed"
        return ReplayVerdict(named=named, suspects=sorted(suspects), reason=why and self._and_unjudged(why))

    @property
    def unjudged(self) -> list[str]:
        """Nodes of which no group says anything."""
        judged = {node for result in self.results for node in result.members}
        return [node for node in self._nodes if node not in judged]

    def _and_unjudged(self, reason: str) -> str:
        if len(self.unjudged) == len(self._nodes):
            return "nothing could be replayed"
        return f"{reason}. Nothing is known of {', '.join(self.unjudged)}" if self.unjudged else reason

    def _suspects(self, failed: Iterable[ReplayResult]) -> set[str]:
        """Nodes that never passed. Where all have, those that failed most often."""
        times = Counter(node for result in failed for node in result.members)
        doubtful = {node for node in times if node not in self._passed}
        return doubtful or {node for node, count in times.items() if count == max(times.values())}

    def _reason(self, node: str) -> str:
        failed = [result for result in self.results if not result.ok and node in result.members]
        return f"{len(failed)} replays failed with it and none passed: {failed[-1].error}"


def _all_failed(groups: int) -> str:
    if groups == 1:
        return "the only group failed, and none passed"
    return "every group failed: the program itself is at fault, or something that all nodes share"
