"""What moving a job would cost, from its snapshot. Pure."""

from __future__ import annotations

from typing import TypedDict

from pulsetrain.recovery import restart_cost
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.restart_cost import Price
from pulsetrain.recovery.snapshot import JobSnapshot


class MovePreview(TypedDict):
    """`standby` is the node that would take over, None where none has to. `why_not`: why it cannot be done.

    `lost_steps` would be done again if it were done at once, without waiting for a checkpoint. `price` holds
    for that.
    """

    job: str
    what: str
    node: str
    state: str
    step: int
    resume_step: int
    lost_steps: int
    price: Price
    standby: str | None
    dry_run: bool
    can_do: bool
    why_not: str


def preview(job: JobSnapshot, request: MoveRequest, why_not: str, *, dry_run: bool) -> MovePreview:
    """What happens to `job`."""
    without = request.node
    resume_step = restart_cost.resume_step(job, without=without)
    lost_steps = max(job.last_step - resume_step, 0)
    return {
        "job": job.job,
        "what": request.what,
        "node": without,
        "state": str(job.phase),
        "step": job.last_step,
        "resume_step": resume_step,
        "lost_steps": lost_steps,
        "price": restart_cost.of_stop(job, lost_steps=lost_steps),
        "standby": min((n.name for n in job.standbys()), default=None) if without else None,
        "dry_run": dry_run,
        "can_do": not why_not,
        "why_not": why_not,
    }
