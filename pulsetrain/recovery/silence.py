"""Decides whether a node that is connected but silent is lost, or only late.

An agent on a busy machine may be late while its ranks train. To give its node up then would cost a healthy
job its steps. Training is synchronous: if the ranks of a node are gone, those of all other nodes soon wait.
So silence counts at once only if nobody else moves either. Otherwise it counts late.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.protocol.messages import RankStatus
from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.policy import Policy

SURVIVED_FACTOR = 2  # silence must last so many times as long as the longest one that ended by itself


def verdict(node: Node, members: Membership, policy: Policy, now_s: float) -> str:
    """Return why the connected node counts as lost, "" where it does not."""
    silent_s = now_s - node.heard_s
    if silent_s <= _limit_s(members, policy):
        return ""
    reason = f"no heartbeat for {silent_s:.1f} s"
    if node.state is not NodeState.ACTIVE or silent_s > policy.silent_node_s:
        return reason
    return reason if _others_stand_still(node, members, policy, now_s) else ""


def _limit_s(members: Membership, policy: Policy) -> float:
    survived_s = max((n.longest_silence_s for n in members.present()), default=0.0)
    return max(policy.heartbeat_timeout_s, SURVIVED_FACTOR * survived_s)


def _others_stand_still(node: Node, members: Membership, policy: Policy, now_s: float) -> bool:
    """Whether other nodes are heard, and none of their ranks makes progress."""
    others = [n for n in members.active() if n is not node]
    heard = [n for n in others if now_s - n.heartbeat_s <= _limit_s(members, policy)]
    limit_s = max(
        policy.heartbeat_timeout_s, SURVIVED_FACTOR * max((n.longest_quiet_s for n in others), default=0.0)
    )
    return bool(heard) and all(now_s - n.heartbeat_s + _quiet_s(_ranks(n)) > limit_s for n in heard)


def _ranks(node: Node) -> Sequence[RankStatus]:
    return node.heartbeat.ranks if node.heartbeat is not None else ()


def _quiet_s(ranks: Sequence[RankStatus]) -> float:
    """Time since any of these ranks made progress. A node that runs none holds nobody up."""
    return min((r.progress_age_ns / 1e9 for r in ranks), default=float("inf"))
