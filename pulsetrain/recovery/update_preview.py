"""When an update of a job's program would come into force, and what that costs, from its snapshot. Pure."""

from __future__ import annotations

from typing import TypedDict

from pulsetrain.recovery import restart_cost
from pulsetrain.recovery.restart_cost import Price
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.update_request import UpdateRequest


class UpdatePreview(TypedDict):
    """`number`, `argv` and `environment` (names alone) are what would be launched. Of a cancellation they are
    what waits.

    `until_ns` is when the update stops the job at the latest, 0 for a cancellation. `price` is that of a stop
    of its own, `lost_steps` are those that it may cost, and `risk` says when, or why the job is not stopped.
    An update that is merged into a restart costs nothing. `why_not`: why it cannot be done.
    """

    job: str
    what: str
    state: str
    number: int
    argv: list[str]
    environment: list[str]
    until_ns: int
    now: bool
    step: int
    lost_steps: int
    risk: str
    price: Price
    dry_run: bool
    can_do: bool
    why_not: str


def preview(
    job: JobSnapshot,
    request: UpdateRequest,
    why_not: str,
    may_lose: tuple[int, str],
    *,
    within_s: float,
    dry_run: bool,
) -> UpdatePreview:
    """What happens to `job`. The update waits for `within_s` seconds where the request does not say.

    `may_lose` are the steps that it may cost, and when.
    """
    pending, now_ns = job.updates.pending, job.now_ns
    program, until_ns = (pending.program if pending else job.updates.in_force), 0
    if request.what != "cancel":
        asked = job.updates.would_wait(request, job.updates.number + 1, now_ns, within_s)
        waits = pending.merged(asked) if pending is not None else asked
        program, until_ns = waits.program, waits.until_ns
    return {
        "job": job.job,
        "what": request.what,
        "state": str(job.phase),
        "number": program.number,
        "argv": list(program.argv),
        "environment": sorted(program.environment),
        "until_ns": until_ns,
        "now": request.what != "cancel" and until_ns <= now_ns,
        "step": job.last_step,
        "lost_steps": may_lose[0],
        "risk": may_lose[1],
        "price": restart_cost.of_stop(job, lost_steps=may_lose[0]),
        "dry_run": dry_run,
        "can_do": not why_not,
        "why_not": why_not,
    }
