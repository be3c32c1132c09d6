"""A restart that would lose every step waits for lost nodes that have the job's state in memory.

A switch that fails for seconds can take all nodes with the copies of a rank from the hub at once. Their
agents keep that state and come back.
"""

from __future__ import annotations

from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.state import JobState

FEW_STEPS = 5
"""Nobody waits for so few: they are done again as fast."""


def awaited(job: JobState) -> tuple[str, ...]:
    """The lost nodes for whose state the job waits, () where nothing is to wait for.

    The first time in a recovery it is an event, and the time of `lost_state_wait_s` begins.
    """
    recovery, wait_s = job.recovery, job.services.policy.lost_state_wait_s
    if recovery is None or recovery.state_given_up or recovery.lose_progress or not wait_s:
        return ()
    nodes = _away(job, recovery.state_awaited_of)
    if not nodes:
        recovery.state_awaited_of = ()
        return ()
    now_s = job.services.clock.monotonic_s()
    if not recovery.state_awaited_s:
        recovery.state_awaited_s = now_s
        job.write("state_awaited", {"nodes": nodes, "from_step": recovery.from_step, "wait_s": wait_s})
    recovery.state_awaited_of = nodes
    if now_s - recovery.state_awaited_s < wait_s:
        return nodes
    recovery.state_given_up = True
    job.write("state_given_up", {"nodes": nodes, "from_step": recovery.from_step})
    return ()


def _away(job: JobState, before: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes that would make a restart go on from somewhere. `before` are those of the last look."""
    members, unrestorable = job.members, job.restarts.unrestorable
    lost = [node for node in members.nodes.values() if _has_state(node)]
    unheard = tuple(name for name in before if _is_unheard(members, name))
    if not (lost or unheard) or job.own_checkpoints.can_resume():
        return ()
    if members.plan_restore(members.world, unrestorable).step >= 0:
        return ()
    if lost and members.plan_restore(members.world, unrestorable, lost=lost).step >= FEW_STEPS:
        return tuple(sorted({*unheard, *(node.name for node in lost)}))
    return unheard


def _has_state(node: Node) -> bool:
    """Whether a lost node, whose agent did not say that it ends, had checkpoints in its memory."""
    lost = node.state is NodeState.LOST and node.leaving is None
    return lost and node.heartbeat is not None and any(h.tier != "storage" for h in node.heartbeat.held)


def _is_unheard(members: Membership, name: str) -> bool:
    """Whether a node is back and has not said yet what it has."""
    node = members.nodes.get(name)
    return node is not None and node.usable and node.heartbeat is None
