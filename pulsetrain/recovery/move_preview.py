"""What moving a job would cost, from its snapshot. Pure."""

from __future__ import annotations

from typing import TypedDict

from pulsetrain.recovery import world
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.snapshot import JobSnapshot


class MovePreview(TypedDict):
    """`standby` is the node that would take over, None where none has to. `why_not`: why it cannot be done.

    `lost_steps` would be done again if it were done at once, without waiting for a checkpoint.
    """

    job: str
    what: str
    node: str
    state: str
    step: int
    resume_step: int
    lost_steps: int
    standby: str | None
    dry_run: bool
    can_do: bool
    why_not: str


def preview(job: JobSnapshot, request: MoveRequest, why_not: str, *, dry_run: bool) -> MovePreview:
    """What happens to `job`."""
    without = request.node
    own = job.own_checkpoint
    own_step = own.step if own is not None and own.complete else -1
    resume_step = max(world.plan_restore(job.world, job.held(without=without)).step, own_step)
    return {
        "job": job.job,
        "what": request.what,
        "node": without,
        "state": str(job.phase),
        "step": job.last_step,
        "resume_step": resume_step,
        "lost_steps": max(job.last_step - resume_step, 0),
        "standby": min((n.name for n in job.standbys()), default=None) if without else None,
        "dry_run": dry_run,
        "can_do": not why_not,
        "why_not": why_not,
    }
