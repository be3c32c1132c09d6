"""Decides whether a node that is connected but silent is lost, or only late.

An agent on a busy machine may be late while its ranks train. To give its node up then would cost a healthy
job its steps. Training is synchronous: if the ranks of a node are gone, those of all other nodes soon wait.
So silence counts at once only if nobody else moves either. Otherwise it counts late.

Before the first step no rank moves, and machines are at their busiest: thousands of agents join, and ranks
import and connect. To lose a node then makes all others start anew. So silence counts late there as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property

from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import RankStatus
from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.nodes import USUAL_HEARTBEATS, Node, NodeState
from pulsetrain.recovery.policy import Policy

SURVIVED_FACTOR = 2  # silence must last so many times as long as the longest one that ended by itself


class Silence:
    """The nodes of a job at one moment. What is the same for all of them is worked out once.

    A hub asks for every node several times a second, so the time must not grow with their square.
    """

    def __init__(self, members: Membership, policy: Policy, now_s: float, *, starting: bool = False) -> None:
        self._members, self._policy, self._now_s = members, policy, now_s
        self._least_s = policy.heartbeat_timeout_s
        if starting:
            self._least_s = max(self._least_s, policy.starting_silence_s)

    def doubtful(self) -> list[Node]:
        """The nodes of which there is anything to ask: of thousands it is of a few."""
        heard_s = self._now_s - self._least_s
        return [
            node
            for node in self._members.nodes.values()
            if node.heard_s < heard_s or node.closed_s is not None or node.leaving is not None
        ]

    def verdict(self, node: Node) -> str:
        """Return why the connected node counts as lost, "" where it does not."""
        silent_s = self._now_s - node.heard_s
        if silent_s <= self._least_s or silent_s <= self._limit_s:
            return ""
        reason = f"no heartbeat for {silent_s:.1f} s"
        if node.state is not NodeState.ACTIVE or self.is_too_long(node):
            return reason
        return reason if self._others_stand_still(node) else ""

    @cached_property
    def nobody_heard(self) -> bool:
        """Whether the job has a world, and no node of it nor a standby is heard."""
        if self._any_heard(self._least_s):  # the first of thousands, several times a second
            return False
        active = any(node.state is NodeState.ACTIVE for node in self._members.nodes.values())
        return active and not self._any_heard(max(self._least_s, self._beats_s))

    @cached_property
    def all_too_long(self) -> bool:
        """Whether every node of the world was silent for so long that it is lost whatever others do."""
        active = [node for node in self._present if node.state is NodeState.ACTIVE and node.leaving is None]
        return all(self.is_too_long(node) and not self._may_be_late(node) for node in active)

    def is_silent(self, node: Node) -> bool:
        """Whether less is heard of a connected node than is usual, so that a command may not reach it."""
        return node.connected and not self._may_be_late(node)

    def is_too_long(self, node: Node) -> bool:
        """Whether nothing was heard of the node for so long that it is lost whatever others do."""
        return self._now_s - node.heard_s > max(self._policy.silent_node_s, self._beats_s)

    def _may_be_late(self, node: Node) -> bool:
        return node.connected and self._now_s - node.heard_s <= self._limit_s

    def others_move(self, node: Node) -> bool:
        """Return whether ranks of other nodes train on, so that those of this one do as well."""
        if node.state is not NodeState.ACTIVE:
            return False
        return any(name != node.name for _, name in self._quickest) and not self._others_stand_still(node)

    def _any_heard(self, limit_s: float) -> bool:
        heard_s = self._now_s - limit_s
        return any(node.usable and node.heard_s >= heard_s for node in self._members.nodes.values())

    @cached_property
    def _limit_s(self) -> float:
        survived_s = max((n.longest_silence_s for n in self._present), default=0.0)
        return max(self._least_s, self._beats_s, SURVIVED_FACTOR * survived_s)

    @cached_property
    def _beats_s(self) -> float:
        """How long silence is usual by what the agents say. Each node has a configuration of its own."""
        slowest_ns = max((n.hello.heartbeat_ns for n in self._present), default=0)
        return USUAL_HEARTBEATS * slowest_ns / 1e9

    @cached_property
    def _present(self) -> list[Node]:
        return self._members.present()

    def _others_stand_still(self, node: Node) -> bool:
        """Whether other nodes are heard, and none of their ranks makes progress."""
        stood_s = next((s for s, name in self._quickest if name != node.name), None)
        survived_s = next((s for s, name in self._quietest if name != node.name), 0.0)
        limit_s = max(self._policy.heartbeat_timeout_s, self._beats_s, SURVIVED_FACTOR * survived_s)
        return stood_s is not None and stood_s > limit_s

    @cached_property
    def _quickest(self) -> list[tuple[float, str]]:
        """The two nodes that are heard and whose ranks made progress last: how long ago, and their names."""
        ages = ((self._now_s - n.heartbeat_s, n) for n in self._members.active())
        heard = ((age_s + _quiet_s(_ranks(n)), n.name) for age_s, n in ages if age_s <= self._limit_s)
        return heapq.nsmallest(2, heard)

    @cached_property
    def _quietest(self) -> list[tuple[float, str]]:
        """The two nodes whose ranks once stood still the longest and went on."""
        return heapq.nlargest(2, ((n.longest_quiet_s, n.name) for n in self._members.active()))


def _ranks(node: Node) -> Sequence[RankStatus]:
    return node.heartbeat.ranks if node.heartbeat is not None else ()


def _quiet_s(ranks: Sequence[RankStatus]) -> float:
    """Time since any of these ranks made progress. A node that runs none holds nobody up."""
    return min(column(ranks, "progress_age_ns"), default=float("inf")) / 1e9
