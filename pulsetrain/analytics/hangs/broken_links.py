"""Which links carry nothing, from the connections on which ranks resend in vain. Pure.

A connection is between two addresses. Those of nodes are known from the world, and from the other ends of
such connections. An address that belongs to no node of the job, such as that of a storage, says nothing.
Nor does a rank that waits in no collective: it may have work to do meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pulsetrain.analytics.hangs.job_view import COMMUNICATION, JobView, slow_phase
from pulsetrain.protocol.messages import RankStatus

Pair = tuple[str, str]
Place = Literal["node", "link"]


@dataclass(frozen=True, kw_only=True)
class BrokenLinks:
    """Pairs of nodes between which no data passes, sorted. `ranks` have such a connection."""

    pairs: tuple[Pair, ...] = ()
    ranks: frozenset[int] = frozenset()

    @property
    def node(self) -> str:
        """The node that all of several pairs have in common, "" where there is none."""
        ends = Counter(node for pair in self.pairs for node in pair)
        common = [node for node, count in ends.items() if count == len(self.pairs) > 1]
        return common[0] if len(common) == 1 else ""

    @property
    def subject(self) -> tuple[Place, str] | None:
        """Type and name of what is at fault: a node, or the only link. None where neither is known."""
        if self.node:
            return "node", self.node
        return ("link", "-".join(self.pairs[0])) if len(self.pairs) == 1 else None

    @property
    def nodes(self) -> list[str]:
        """The nodes in doubt."""
        return [self.node] if self.node else sorted({node for pair in self.pairs for node in pair})

    @property
    def why(self) -> str:
        """What is known, as a clause."""
        if self.node:
            return f"no data passes between {self.node} and {len(self.pairs)} other nodes"
        if len(self.pairs) == 1:
            return f"no data passes between {' and '.join(self.pairs[0])}"
        return f"no data passes over {len(self.pairs)} links"


def find(view: JobView) -> BrokenLinks:
    """The links of the job's nodes that carry nothing.

    >>> find(JobView(job="j", attempt=0, now_ns=0)).pairs
    ()
    """
    if not any(activity.stuck for activity in view.activity.values()):
        return BrokenLinks()
    nodes, waiting = _addresses(view), {status.rank for status in view.ranks if waits(status)}
    found = [
        (rank, tuple(sorted((own, other)))) for rank, own, other in _ends(view, nodes) if rank in waiting
    ]
    pairs = sorted({(first, second) for _, (first, second) in found})
    return BrokenLinks(pairs=tuple(pairs), ranks=frozenset(rank for rank, _ in found))


def waits(status: RankStatus) -> bool:
    """Whether a rank is in a collective or in a transfer.

    A rank that evaluates, saves or is in a phase of the user's own works, whatever is in flight meanwhile.
    """
    if slow_phase(status):
        return False
    return status.last_phase in COMMUNICATION or any(group.op for group in status.groups)


def _ends(view: JobView, nodes: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Rank, its node and the node at the other end of each connection between two nodes."""
    for rank, activity in view.activity.items():
        own = view.node_of(rank)
        for connection in activity.stuck:
            other = nodes.get(connection.remote, "")
            if own and other and own != other:
                yield rank, own, other


def _addresses(view: JobView) -> dict[str, str]:
    """The node of each address that only one node has."""
    pairs = {(node.address, node.node) for node in view.world}
    pairs |= {(c.local, view.node_of(rank)) for rank, a in view.activity.items() for c in a.stuck}
    shared = Counter(address for address, _ in pairs)
    return {address: node for address, node in pairs if shared[address] == 1}
