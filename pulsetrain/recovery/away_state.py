"""A restart that would lose many steps waits for lost nodes that have the job's state in memory.

A switch that fails for seconds can take all nodes with the copies of a rank from the hub at once. Their
agents keep that state and come back. What storage has is then perhaps a thousand steps older.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.state import JobState

FEW_STEPS = 5
"""Nobody waits for so few: they are done again as fast."""
WAITED_SHARE = 0.1
"""of the time that lost steps took is waited for them, where others are left. Perhaps nobody comes back."""
LEAST_WAIT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class _Away:
    """Lost `nodes` without whose memory `steps` are lost. With `all_steps` there are no others."""

    nodes: tuple[str, ...]
    steps: int
    all_steps: bool


def awaited(job: JobState) -> tuple[str, ...]:
    """The lost nodes for whose state the job waits, () where nothing is to wait for.

    The first time in a recovery it is an event, and the time of `lost_state_wait_s` begins. Where only a part
    of the steps would be lost, it is a tenth of their time at most.
    """
    recovery = job.recovery
    if recovery is None or recovery.state_given_up or recovery.lose_progress:
        return ()
    away = _away(job, recovery.state_awaited_of)
    wait_s = _wait_s(job, away, recovery.step_s) if away is not None else 0.0
    if away is None or not wait_s or (recovery.steps_given_up and not away.all_steps):
        recovery.state_awaited_of = ()
        return ()
    now_s = job.services.clock.monotonic_s()
    if not recovery.state_awaited_s:
        recovery.state_awaited_s = now_s
        detail = {"nodes": away.nodes, "from_step": recovery.from_step, "lost_steps": away.steps}
        job.write("state_awaited", detail | {"wait_s": round(wait_s, 3)})
    recovery.state_awaited_of, recovery.state_awaited_steps = away.nodes, away.steps
    if now_s - recovery.state_awaited_s < wait_s:
        return away.nodes
    recovery.state_given_up, recovery.steps_given_up = away.all_steps, True
    job.write("state_given_up", {"nodes": away.nodes, "from_step": recovery.from_step})
    return ()


def _wait_s(job: JobState, away: _Away, step_s: float) -> float:
    """How long these nodes are worth to be waited for. 0: not at all."""
    longest_s = job.services.policy.lost_state_wait_s
    if away.all_steps:
        return longest_s
    wait_s = min(longest_s, away.steps * step_s * WAITED_SHARE)
    return wait_s if wait_s >= LEAST_WAIT_S else 0.0


def _away(job: JobState, before: tuple[str, ...]) -> _Away | None:
    """Nodes that would make a restart go on from much further. `before` are those of the last look."""
    members, unrestorable, recovery = job.members, job.restarts.unrestorable, job.recovery
    lost = [node for node in members.nodes.values() if _has_state(node)]
    unheard = tuple(name for name in before if _is_unheard(members, name))
    if not (lost or unheard) or job.own_checkpoints.can_resume() or recovery is None:
        return None
    left = members.plan_restore(members.world, unrestorable).step
    if left >= 0:  # what has been away for long is waited for no more at each fault
        lost = [node for node in lost if node.name in recovery.from_nodes]
    if lost:
        steps = members.plan_restore(members.world, unrestorable, lost=lost).step - left
        if steps > FEW_STEPS:
            names = {*unheard, *(node.name for node in lost)}
            return _Away(nodes=tuple(sorted(names)), steps=steps, all_steps=left < 0)
    steps = recovery.from_step - left
    if unheard and (left < 0 or steps > FEW_STEPS):
        return _Away(nodes=unheard, steps=steps, all_steps=left < 0)
    return None


def _has_state(node: Node) -> bool:
    """Whether a lost node, whose agent did not say that it ends, had checkpoints in its memory."""
    lost = node.state is NodeState.LOST and node.leaving is None
    return lost and node.heartbeat is not None and any(h.tier != "storage" for h in node.heartbeat.held)


def _is_unheard(members: Membership, name: str) -> bool:
    """Whether a node is back and has not said yet what it has."""
    node = members.nodes.get(name)
    return node is not None and node.usable and node.heartbeat is None
