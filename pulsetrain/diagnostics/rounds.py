"""Rounds of checks in groups: what one group answered, and what was timed. Pure.

A round is a set of groups without a common node. All groups of a round run at the same time. Each does one
all-gather (`diagnostics.all_gather`) and answers whether it passed, and how long it took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """Result of one group's all-gather. `round` counts from 0.

    `seconds` is the sum over its repetitions and has no meaning if not `ok`. `error` is the first member's
    reason in one line. `store` is the node at whose store the group met, "" if that is none of them.
    `own_times_s` has what each member does alone, by node and name of the measure. `gpus` has the UUID of the
    GPU that each member used, by node, and nothing where they used processors.
    """

    members: Group
    ok: bool
    seconds: float
    error: str = ""
    round: int = 0
    store: str = ""
    own_times_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """The result as JSON-able evidence, without what members did alone."""
        fields = {name: value for name, value in vars(self).items() if name != "own_times_s"}
        return fields | {"members": list(self.members)}


def pairs_of(nodes: Sequence[str]) -> list[Group]:
    """Pair neighbours in the order given. An odd one joins the last pair. Fewer than two nodes give no group.

    >>> pairs_of(["1", "2", "3", "4", "5"])
    [('1', '2'), ('3', '4', '5')]
    """
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and pairs:
        pairs[-1] += (nodes[-1],)
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
