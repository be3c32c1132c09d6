"""What moving a job would cost, from its snapshot. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypedDict

from pulsetrain.recovery import restart_cost
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.restart_cost import Price
from pulsetrain.recovery.snapshot import JobSnapshot

_ONLY = "only those of a job of one node that nothing else saves"


class MovePreview(TypedDict):
    """`standby` is the node that would take over, None where none has to. `why_not`: why it cannot be done.

    `lost_steps` would be done again if it were done at once, without waiting for a checkpoint. `price` holds
    for that. `process_dump` says in one line why the job goes on from a saved step, not from a dump.
    """

    job: str
    what: str
    node: str
    state: str
    step: int
    resume_step: int
    lost_steps: int
    price: Price
    process_dump: str
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
        "process_dump": process_dump(job),
        "standby": min((n.name for n in job.standbys()), default=None) if without else None,
        "dry_run": dry_run,
        "can_do": not why_not,
        "why_not": why_not,
    }


def process_dump(job: JobSnapshot) -> str:
    """Say why ranks are not dumped as they are, with what their hosts lack for it."""
    return why_no_dump({n.name: n.hello.dump_lacks for n in job.nodes if n.state is NodeState.ACTIVE})


def why_no_dump(lacks: Mapping[str, str]) -> str:
    """The same, from what each host lacks by its name.

    >>> why_no_dump({"a": "criu is not installed", "b": "criu is not installed", "c": ""})
    'processes are not dumped (criu is not installed on a, b): the job goes on from a saved step'
    """
    hosts: dict[str, list[str]] = defaultdict(list)
    for name in sorted(lacks):
        if lacks[name]:
            hosts[lacks[name]].append(name)
    said = "; ".join(
        f"{why} on {', '.join(names[:4])}{', ...' * (len(names) > 4)}" for why, names in hosts.items()
    )
    return f"processes are not dumped ({said or _ONLY}): the job goes on from a saved step"
