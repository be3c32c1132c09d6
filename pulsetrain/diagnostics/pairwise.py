"""Plan the pairwise check and judge its results: which nodes cannot talk. Pure.

Small groups of nodes all-gather (`diagnostics.all_gather`). Regrouping separates the culprit from its
partner:

1. `round_one` pairs neighbours.
2. `round_two` puts each node of a failed pair beside a node that passed. If nothing failed, it puts the
   fastest beside the slowest.
3. `next_round` goes on while there are more suspects than good partners.

`faulty` names only nodes that failed beside nodes that passed elsewhere. A healthy node that was paired with
broken ones twice is therefore not evicted. The two-round scheme is DLRover's network check
(dlrover.master.elastic_training.rdzv_manager), which evicts whoever failed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Result of one group's all-gather.

    `seconds` is the sum over its repetitions and has no meaning if not `ok`. `error` is the first member's
    reason in one line.
    """

    members: Group
    ok: bool
    seconds: float
    error: str = ""

    def row(self) -> dict[str, object]:
        """The result as JSON-able evidence."""
        return asdict(self) | {"members": list(self.members)}


def round_one(nodes: Sequence[str]) -> list[Group]:
    """Pair neighbours in the order given. An odd one joins the last pair. Fewer than two nodes give no group.

    >>> round_one(["1", "2", "3", "4", "5"])
    [('1', '2'), ('3', '4', '5')]
    """
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and pairs:
        pairs[-1] += (nodes[-1],)
    return pairs


def round_two(results: Sequence[PairResult]) -> list[Group]:
    """Return the groups of the second round: suspects beside good nodes, or slowest beside fastest.

    >>> one = [PairResult(members=m, ok=m != ("5", "6"), seconds=1.0) for m in round_one("123456")]
    >>> round_two(one)
    [('1', '2'), ('3', '5'), ('4', '6')]
    """
    if any(not r.ok for r in results):
        return next_round(results)
    times = best_times(results)
    ranked = sorted(times, key=lambda node: (times[node], node))
    half = len(ranked) // 2
    groups: list[Group] = [(ranked[i], ranked[-1 - i]) for i in range(half)]
    if len(ranked) % 2 and groups:
        groups[-1] += (ranked[half],)
    return groups


def next_round(results: Sequence[PairResult]) -> list[Group]:
    """Return disjoint groups that decide the most nodes still in doubt.

    Empty if nobody is in doubt or no useful group is left. Good nodes that are left over are paired again, so
    that every node gets a second time.
    """
    suspects, good = undecided(results), sorted(_good(results))
    if not suspects:
        return []
    if not good:
        return _fresh_pairs(suspects, results)
    asked = min(len(suspects), len(good))
    spare, partners = good[: len(good) - asked], good[len(good) - asked :]
    return [*round_one(spare), *zip(partners, suspects[:asked], strict=True)]


def _fresh_pairs(suspects: Sequence[str], results: Iterable[PairResult]) -> list[Group]:
    """Return disjoint pairs that have not failed together as a pair before. Greedy, in order."""
    tried = {frozenset(r.members) for r in results if len(r.members) == 2}
    free, groups = list(suspects), list[Group]()
    while free:
        first = free.pop(0)
        partner = next((n for n in free if frozenset((first, n)) not in tried), None)
        if partner is not None:
            free.remove(partner)
            groups.append((first, partner))
    return groups


def undecided(results: Iterable[PairResult]) -> list[str]:
    """Return the nodes that only failed, and never beside good nodes alone, sorted."""
    known = list(results)
    return sorted({n for r in known for n in r.members} - faulty(known).keys() - _good(known))


def faulty(results: Iterable[PairResult]) -> dict[str, str]:
    """Map each faulty node to the reason.

    It never passed, and failed beside members that all passed elsewhere.
    """
    known = list(results)
    good = _good(known)
    reasons: dict[str, str] = {}
    for result in known:
        rest = [n for n in result.members if n not in good]
        if not result.ok and len(rest) == 1:
            partners = ", ".join(n for n in result.members if n != rest[0])
            why = f": {result.error}" if result.error else ""
            reasons[rest[0]] = f"all-gather with {partners} failed, which passed elsewhere{why}"
    return reasons


def best_times(results: Iterable[PairResult]) -> dict[str, float]:
    """Return each node's shortest time over the groups in which it passed, in seconds."""
    times: dict[str, float] = {}
    for result in results:
        for node in result.members if result.ok else ():
            times[node] = min(times.get(node, result.seconds), result.seconds)
    return times


def _good(results: Iterable[PairResult]) -> set[str]:
    return {n for r in results if r.ok for n in r.members}
