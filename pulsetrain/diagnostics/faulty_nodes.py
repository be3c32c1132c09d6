"""Find faulty nodes and faulty links by group tests, in few rounds. Pure.

The model: a group fails if one of its nodes is faulty, or a link between two of its nodes. Everything else
passes. So all nodes of a group that passed are good. A node is faulty if it never passed and failed beside
`failures` different good nodes. A link is faulty if its two nodes fail together again and again, and each of
them passes with others.

How the rounds go:

1. Neighbours are paired. That is half a test for each node. If all pass, nothing is faulty.
2. Each node of a failed pair is paired with a good node. The good one of the two passes, and becomes the
   second witness against the other.
3. Only where something is still open: two faulty nodes were in one pair, or a pair of good nodes failed and
   is asked again, or more nodes are in doubt than are good.

What counts is rounds. A node takes part in one group of a round, however large the group is. So pairs cost no
node more than large groups would, and they say the most. `rounds_bound` says how many rounds are needed.
`information_bound_tests` says how few tests would do for a method that may take as many rounds as it likes.

Answers that contradict each other (a pair of good nodes failed once and passed once) show that something is
noisy. Then a node needs `NOISY_FAILURES` failures. With too much noise nobody is named.

The groups of a round meet at a store on one of the nodes. If that node is unreachable, all groups fail. So a
round without a group that passed counts only if its store was on a node that passed in another round. A
member that says that it did not reach the store has tested nothing but the path to that node: the group's
failure is one of these two nodes alone, and none at all where both have passed elsewhere.

To set up a group takes from a tenth of a second to half a minute: processes begin, drivers of GPUs, NCCL. So
a group that was given up counts as failed only if it had far longer than the slowest one that passed. Else it
may have been about to pass.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pulsetrain.diagnostics.rounds import NO_SWITCHES, Group, GroupResult, pairs_of, passed

FAILURES = 2
"""beside different good nodes: one may be the fault of a link (DLRover's network check also asks for two)"""
NOISY_FAILURES = 4
MOST_NOISE_RATIO = 0.1
"""of the tests of good nodes alone. Above it nobody is named: 1 of 10,000 good nodes would fail four times"""
SEARCH_ROUNDS = 7
"""without any group that passed, after which the search for a good node is given up"""
LEAST_NODES = 3
TELLING = 3.0
"""times as long as the slowest group that passed, before a group that was given up counts as failed"""


@dataclass(frozen=True, kw_only=True)
class FaultVerdict:
    """What the rounds so far say.

    `faulty` maps a node to the reason, `links` a pair of good nodes. `undecided` holds nodes that only
    failed and cannot be named, `unsteady` groups of good nodes that failed and also passed. `reason` says why
    something is undecided, "" where all is known. `noisy`: so much contradicts that nobody can be named.
    """

    faulty: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[Group, str] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    unsteady: tuple[Group, ...] = ()
    reason: str = ""
    noisy: bool = False

    @property
    def state(self) -> str:
        """One of found (a node or a link is named), inconclusive and healthy."""
        if self.faulty or self.links:
            return "found"
        return "inconclusive" if self.reason else "healthy"


def next_round(
    nodes: Sequence[str],
    results: Sequence[GroupResult],
    *,
    failures: int = FAILURES,
    switches: Mapping[str, str] = NO_SWITCHES,
) -> list[Group]:
    """Return disjoint groups of two or three of `nodes` that decide the most of what is still open.

    `failures`: beside how many different good nodes a faulty node must fail. Nodes meet those under the same
    one of `switches` first.

    Empty if nothing is open, or if no further group could decide it. Good nodes that are not needed are in no
    group. The answer depends on the order of `nodes` and not on their names.

    >>> next_round("123456", [])
    [('1', '2'), ('3', '4'), ('5', '6')]
    >>> pairs = pairs_of("123456")
    >>> next_round("123456", [GroupResult(members=m, ok="6" not in m, seconds=1) for m in pairs])
    [('5', '1'), ('6', '2')]
    """
    if not results:
        return pairs_of(nodes, switches)
    evidence = _Evidence(nodes, results, failures)
    if not evidence.good:
        return _search(nodes, results)
    if evidence.too_noisy:
        return []
    again = list(_disjoint(evidence.asked_again()))
    taken = {node for group in again for node in group}
    helpers = [n for n in nodes if n in evidence.good and n not in taken]
    matched = _helped(evidence, helpers, switches)
    idle = [n for n in evidence.suspects if n not in matched]
    return [*again, *matched.items(), *_fresh_pairs(idle, evidence.tried)]


def judge(nodes: Sequence[str], results: Sequence[GroupResult], *, failures: int = FAILURES) -> FaultVerdict:
    """Name the faulty nodes and links of `nodes`, or say why that cannot be known. `failures` as above.

    While rounds are still to come, `undecided` holds who is in doubt.

    >>> pairs = {("a", "b"): True, ("c", "d"): False, ("c", "a"): True, ("d", "b"): False}
    >>> results = [GroupResult(members=pair, ok=ok, seconds=1) for pair, ok in pairs.items()]
    >>> list(judge("abcd", results).faulty)
    ['d']
    """
    if not results:
        return FaultVerdict(reason="no group was tested")
    if all(r.ok for r in results):
        return FaultVerdict()
    evidence = _Evidence(nodes, results, failures)
    in_doubt, unsteady = tuple(evidence.in_doubt), evidence.unsteady
    why = _unknowable(nodes, evidence)
    if why:
        return FaultVerdict(undecided=in_doubt, unsteady=unsteady, reason=why, noisy=evidence.too_noisy)
    faulty = {n: evidence.reason(n) for n in in_doubt if evidence.named(n)}
    undecided = tuple(n for n in in_doubt if n not in faulty)
    open_ = [f"{', '.join(undecided)}: never passed, and too few good nodes tried them"] if undecided else []
    noise = [evidence.contradictions()] if unsteady else []
    early = [evidence.too_early()] if undecided and evidence.early else []
    asked = [f"{' and '.join(g)} failed together once" for g in evidence.open_disputes()]
    paths = _bad_paths(results, evidence.good)
    return FaultVerdict(
        faulty=faulty,
        links={pair: evidence.link_reason(pair) for pair in evidence.links},
        undecided=undecided,
        unsteady=unsteady,
        reason="; ".join([*open_, *early, *asked, *noise, *paths]),
    )


def _unknowable(nodes: Sequence[str], evidence: _Evidence) -> str:
    """Why nobody can be named after a failure, "" where somebody can."""
    if len(nodes) < LEAST_NODES:
        return f"{len(nodes)} nodes: nobody else can say which of them is at fault"
    if not evidence.good:
        return f"no group passed: all {len(nodes)} nodes fail, or something that all of them need"
    return evidence.contradictions() if evidence.too_noisy else ""


def rounds_bound(nodes: int, faulty: int, *, failures: int = FAILURES) -> int:
    """Return how many rounds find `faulty` of `nodes` at most, where links are good and nothing is noisy.

    One round for no fault. With four times as many nodes as faults and a few more, all pairs that failed are
    settled at once: `failures` rounds for one fault, and one more where two faults may share a pair. An odd
    number of nodes takes one more too, also of nodes under any switch: the fault may be in the group of
    three, and then the link between the other two is still to be tested. No method needs less than two,
    because the first round cannot tell the members of a group apart. With fewer nodes the bound is larger
    and not tight. Raises `ValueError` where the faults cannot be found: fewer than two good nodes, or so few
    that the search for them is given up.

    >>> [rounds_bound(64, k) for k in range(5)]
    [1, 2, 3, 3, 3]
    >>> [rounds_bound(65, k) for k in range(5)]
    [1, 3, 3, 3, 3]
    """
    good = nodes - faulty
    if good < 2 or good <= -(-nodes // (SEARCH_ROUNDS + 1)):
        raise ValueError(f"faulty = {faulty} of {nodes} nodes: too few good ones to find them")
    if faulty == 0:
        return 1
    odd = nodes % 2
    if nodes >= 4 * faulty + 2 + failures:
        return failures + (faulty > 1 or odd)
    if nodes // 2 > faulty:
        search, helpers = 1, max(2, nodes - 2 * faulty - odd)
    else:
        blocks = next(2**j for j in itertools.count(1) if -(-nodes // 2**j) < good)
        search, helpers = blocks - 1 + odd, 2
    tests = nodes - helpers - faulty + faulty * failures
    return search - (-tests // helpers) + failures


def information_bound_tests(nodes: int, faulty: int) -> int:
    """Return how many tests any method needs that tells up to `faulty` of `nodes` apart.

    A test has two answers, so it is the logarithm to base 2 of the number of cases, rounded up.

    >>> information_bound_tests(64, 1), information_bound_tests(64, 4)
    (7, 20)
    """
    return math.ceil(math.log2(sum(math.comb(nodes, k) for k in range(faulty + 1))))


class _Evidence:
    """What the results of all rounds say about each node and each group of good nodes."""

    def __init__(self, nodes: Sequence[str], results: Sequence[GroupResult], failures: int) -> None:
        self._position = {node: i for i, node in enumerate(nodes)}
        self.good = passed(results)
        self._slowest_s = max((r.took_s for r in results if r.ok), default=0.0)
        self.early = [r for r in results if self._is_too_early(r)]
        telling = _by_path([r for r in results if not self._is_too_early(r)], self.good)
        self._results, self._failures = _counted(telling, self.good), failures
        self.tried = _tried(nodes, self._results)
        self.tried_alone = _tried(nodes, [r for r in self._results if len(r.members) == 2])

    def _is_too_early(self, result: GroupResult) -> bool:
        return result.given_up and result.took_s < TELLING * self._slowest_s

    @cached_property
    def _tally(self) -> Counter[tuple[Group, bool]]:
        """How often each group passed and failed, its members in the order of the nodes."""
        return Counter((self._ordered(r.members), r.ok) for r in self._results)

    def _ordered(self, members: Iterable[str]) -> Group:
        return tuple(sorted(members, key=self._position.__getitem__))

    @cached_property
    def suspects(self) -> list[str]:
        """Nodes that never passed and are not named, in order."""
        return [n for n in self.in_doubt if not self.named(n)]

    @cached_property
    def in_doubt(self) -> list[str]:
        """Nodes that never passed, in order."""
        return [n for n in self.tried if n not in self.good]

    def named(self, node: str) -> bool:
        """Whether a node that never passed failed beside enough good nodes."""
        enough = self._needed if self.unsteady else min(self._needed, len(self.good))
        return len(self._witnesses(node)) >= enough > 0

    @cached_property
    def _needed(self) -> int:
        return NOISY_FAILURES if self.unsteady else self._failures

    @cached_property
    def _failed(self) -> Mapping[str, list[GroupResult]]:
        """The failed groups of each node in doubt. Pairs come first."""
        found: dict[str, list[GroupResult]] = {node: [] for node in self.in_doubt}
        for result in sorted((r for r in self._results if not r.ok), key=lambda r: len(r.members)):
            for node in result.members:
                if node in found:
                    found[node].append(result)
        return found

    def _witnesses(self, node: str) -> list[GroupResult]:
        """Groups in which `node` failed beside good nodes alone. No good node counts twice."""
        found, seen = list[GroupResult](), set[str]()
        for result in self._failed[node]:
            others = set(result.members) - {node}
            if others <= self.good and others.isdisjoint(seen):
                found.append(result)
                seen |= others
        return found

    def reason(self, node: str) -> str:
        """Why a node is named, with the first error that was seen."""
        witnesses = self._witnesses(node)
        partners = ", ".join(n for r in witnesses for n in r.members if n != node)
        why = next((f": {r.error}" for r in witnesses if r.error), "")
        return f"all-gather with {partners} failed, which passed elsewhere{why}"

    # -- groups of good nodes that failed -----------------------------------------------------------------

    @cached_property
    def _disputes(self) -> list[Group]:
        return sorted(
            {g for g, ok in self._tally if not ok and self.good.issuperset(g)},
            key=lambda g: [self._position[n] for n in g],
        )

    def asked_again(self) -> Iterator[Group]:
        """Pairs of good nodes that are to be asked once more."""
        for group in self.open_disputes():
            for pair in itertools.combinations(group, 2):
                if len(group) == 2 or not self._was_asked(pair):
                    yield pair
        yield from self._behind_a_fault()

    def _was_asked(self, pair: Group) -> bool:
        return bool(self._tally[pair, True] or self._tally[pair, False])

    def _behind_a_fault(self) -> Iterator[Group]:
        """Pairs of good nodes that only failed beside a faulty third, so their link was never tested."""
        for group, ok in list(self._tally):
            rest = tuple(n for n in group if n in self.good)
            if not ok and 1 < len(rest) < len(group):
                yield from (pair for pair in itertools.combinations(rest, 2) if not self._was_asked(pair))

    def open_disputes(self) -> list[Group]:
        """Groups of good nodes that failed, of which it is not known why."""
        return [g for g in self._disputes if g not in self.unsteady and not self._explained(g)]

    def _explained(self, group: Group) -> bool:
        return any(pair in self.links for pair in itertools.combinations(group, 2))

    @cached_property
    def links(self) -> tuple[Group, ...]:
        """Pairs of good nodes that failed often enough and never passed."""
        pairs = [g for g in self._disputes if len(g) == 2 and not self._tally[g, True]]
        return tuple(g for g in pairs if self._tally[g, False] >= self._needed)

    def link_reason(self, pair: Group) -> str:
        """Why a link is named."""
        return f"failed together {self._tally[pair, False]} times, and both pass with others"

    @cached_property
    def unsteady(self) -> tuple[Group, ...]:
        """Groups of good nodes that failed, though they or all of their pairs passed too."""
        return tuple(g for g in self._disputes if self._tally[g, True] or self._all_pairs_pass(g))

    def _all_pairs_pass(self, group: Group) -> bool:
        return len(group) > 2 and all(self._tally[pair, True] for pair in itertools.combinations(group, 2))

    @property
    def too_noisy(self) -> bool:
        """Whether so many tests of good nodes contradict each other that a failure says little."""
        tests = sum(self.good.issuperset(r.members) for r in self._results)
        return len(self.unsteady) > max(1.0, MOST_NOISE_RATIO * tests)

    def too_early(self) -> str:
        """Which groups were given up too early to say anything, in one line."""
        told = "; ".join(" and ".join(r.members) for r in self.early[:4])
        limit_s = max(r.took_s for r in self.early)
        return f"{told}: given up after {limit_s:.1f} s, while others passed in {self._slowest_s:.1f} s"

    def contradictions(self) -> str:
        """The contradictions in one line."""
        told = "; ".join(" and ".join(group) for group in self.unsteady[:4])
        return f"{len(self.unsteady)} groups failed and passed without a reason: {told}"


def _counted(results: Sequence[GroupResult], good: set[str]) -> list[GroupResult]:
    """Leave out rounds in which nothing passed and whose store was on a node that is not known to be good.

    Once some group has passed in another round, such a store explains all failures of its round.
    """
    with_pass = {r.round for r in results if r.ok}
    return [r for r in results if not good or r.round in with_pass or r.store in good or not r.store]


def _by_path(results: Iterable[GroupResult], good: set[str]) -> list[GroupResult]:
    """Replace a group with members that did not reach the store by failed pairs of each and the store's node.

    Nothing is left of pairs of good nodes, and of a node that did not reach itself.
    """
    counted = list[GroupResult]()
    for result in results:
        pairs = [(node, result.store) for node in result.unreached if result.store not in ("", node)]
        telling = [replace(result, members=p, unreached=()) for p in pairs if not good.issuperset(p)]
        counted += telling if result.unreached else [result]
    return counted


def _bad_paths(results: Iterable[GroupResult], good: set[str]) -> list[str]:
    """Which good nodes did not reach the store of another good one."""
    paths = {(node, r.store) for r in results for node in r.unreached if node != r.store}
    return [
        f"{node} did not reach the store on {host}" for node, host in sorted(paths) if good >= {node, host}
    ]


def _tried(nodes: Sequence[str], results: Iterable[GroupResult]) -> dict[str, set[str]]:
    """Map each node to those with which it failed."""
    tried: dict[str, set[str]] = {node: set() for node in nodes}
    for result in results:
        for node in () if result.ok else result.members:
            tried[node] |= set(result.members) - {node}
    return tried


def _helped(evidence: _Evidence, helpers: Sequence[str], switches: Mapping[str, str]) -> dict[str, str]:
    """Give suspects a good node, under the same switch if possible.

    One with whom it was in a larger group helps only where no other is left.
    """
    matched = _matched(evidence.suspects, helpers, evidence.tried, switches)
    left = [h for h in helpers if h not in matched.values()]
    others = [n for n in evidence.suspects if n not in matched]
    return matched | _matched(others, left, evidence.tried_alone, switches)


def _search(nodes: Sequence[str], results: Sequence[GroupResult]) -> list[Group]:
    """Return untested pairs for the next round of a search for two good nodes.

    Round r pairs node i with node i XOR r. After 2^j - 1 rounds all pairs inside blocks of 2^j nodes were
    tested, so a good pair was found wherever more nodes are good than there are blocks. Of an odd number one
    pair was tested only with a third node in the first round, and gets one round more.
    """
    number = 1 + max(r.round for r in results)
    if number >= SEARCH_ROUNDS + len(nodes) % 2:
        return []
    tried = _tried(nodes, [r for r in _by_path(results, set()) if len(r.members) == 2])
    both = ((i, i ^ (number + 1)) for i in range(len(nodes)))
    pairs = [(nodes[i], nodes[j]) for i, j in both if i < j < len(nodes) and nodes[j] not in tried[nodes[i]]]
    taken = {node for pair in pairs for node in pair}
    return [*pairs, *_fresh_pairs([n for n in nodes if n not in taken], tried)]


def _fresh_pairs(nodes: Sequence[str], tried: Mapping[str, set[str]]) -> list[Group]:
    """Return disjoint pairs that have not failed together. Greedy, in order."""
    free, pairs = list(nodes), list[Group]()
    while free:
        first = free.pop(0)
        partner = next((n for n in free if n not in tried[first]), None)
        if partner is not None:
            free.remove(partner)
            pairs.append((first, partner))
    return pairs


def _matched(
    suspects: Sequence[str],
    helpers: Sequence[str],
    tried: Mapping[str, set[str]],
    switches: Mapping[str, str],
) -> dict[str, str]:
    """Give each suspect a helper of its own with whom it has not failed, as far as they suffice."""
    free, matched = list(helpers), dict[str, str]()
    for suspect in suspects:
        untried = [h for h in free if h not in tried[suspect]]
        near = (h for h in untried if switches.get(h) == switches.get(suspect))
        helper = next(near, next(iter(untried), None))
        if helper is None:
            _swap(suspect, matched, free, tried)
        else:
            free.remove(helper)
            matched[suspect] = helper
    return matched


def _swap(suspect: str, matched: dict[str, str], free: list[str], tried: Mapping[str, set[str]]) -> None:
    """Give `suspect` the helper of an earlier suspect, where that one can change to a free helper."""
    for other, helper in matched.items():
        instead = next((h for h in free if h not in tried[other]), None)
        if helper not in tried[suspect] and instead is not None:
            free.remove(instead)
            matched |= {other: instead, suspect: helper}
            return


def _disjoint(groups: Iterable[Group]) -> Iterator[Group]:
    """Return those groups that share no node with an earlier one."""
    taken = set[str]()
    for group in groups:
        if taken.isdisjoint(group):
            taken.update(group)
            yield group
