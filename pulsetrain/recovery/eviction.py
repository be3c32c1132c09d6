"""What evicting a node would cost, from a job's snapshot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pulsetrain.recovery import restart_cost, world
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.restart_cost import Price
from pulsetrain.recovery.snapshot import JobSnapshot, NodeSnapshot
from pulsetrain.recovery.transitions import Phase

NO_STANDBY = "no standby: the job would wait for a node"


class EvictionPreview(TypedDict):
    """`standby` is the node that would replace it, None for none. `expected_s` is the median duration of the
    job's past recoveries, None where nothing would have to recover or nothing is known. `price` is what the
    stop costs. `scheduler` is what the cluster's scheduler would be asked for."""

    node: str
    job: str
    attempt: int
    state: str
    ranks: list[int]
    standby: str | None
    resume_step: int
    lost_steps: int
    expected_s: float | None
    price: Price
    allowed: bool
    why_not: str
    scheduler: list[str]


def refusal(node: str, state: NodeState, phase: Phase) -> str:
    """Why a node cannot be evicted now, "" where it can."""
    if state is not NodeState.ACTIVE or phase in (Phase.RUNNING, Phase.STARTING):
        return ""
    return f"node {node!r}: its job is {phase}; try again when it runs"


def preview(job: JobSnapshot, node: NodeSnapshot, scheduler: Sequence[str] = ()) -> EvictionPreview:
    """What happens to `job` when `node` goes, or why it cannot be evicted now. `scheduler` is what its
    scheduler would be asked for."""
    active, refused = node.state is NodeState.ACTIVE, refusal(node.name, node.state, job.phase)
    standbys = [n.hello for n in job.standbys() if n.name != node.name]
    healthy = [n.name for n in job.active() if n.name != node.name]
    plan = world.plan_restore(world.replace_nodes(job.world, healthy, standbys), job.held(without=node.name))
    own = job.own_checkpoint
    resume_step = plan.step if plan.step >= 0 or own is None else own.resumable_step
    lost_steps = max(job.last_step - resume_step, 0) if active else 0
    return {
        "node": node.name,
        "job": job.job,
        "attempt": job.attempt,
        "state": str(node.state),
        "ranks": [rank for m in job.world if m.node == node.name for rank in m.ranks],
        "standby": min((hello.node for hello in standbys), default=None) if active else None,
        "resume_step": resume_step if active else job.last_step,
        "lost_steps": lost_steps,
        "expected_s": restart_cost.usual_recovery_s(job) if active else None,
        "price": restart_cost.of_stop(job, lost_steps=lost_steps) if active else restart_cost.price(0.0, 0),
        "allowed": not refused,
        "why_not": refused or ("" if not active or standbys else _without_standby(job, len(healthy))),
        "scheduler": list(scheduler),
    }


def _without_standby(job: JobSnapshot, left: int) -> str:
    """What a job does that loses a node for which there is no standby."""
    size = job.resizing.sizes.fit(left) if job.resizing is not None else 0
    elastic = job.resizing is not None and job.resizing.sizes.elastic
    return f"no standby: the job would go on with {size} node(s)" if elastic and size else NO_STANDBY
