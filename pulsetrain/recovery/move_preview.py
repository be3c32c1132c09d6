"""What moving a job would cost, from its snapshot. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypedDict

from pulsetrain.recovery import restart_cost
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.restart_cost import Price
from pulsetrain.recovery.snapshot import JobSnapshot

ONLY = "only those of a job of one node that nothing else saves"
_PREEMPTED = "only a pre-emption dumps them"


class MovePreview(TypedDict):
    """`standby` is the node that would take over, None where none has to. `why_not`: why it cannot be done.
    `on_nodes` are those that the job is resumed on, [] for those that it has.

    `lost_steps` would be done again if it were done at once, without waiting for a checkpoint. `price` holds
    for that. `process_dump` says in one line why the job goes on from a saved step, not from a dump. It is ""
    where its processes are dumped. `waits_for` is "pool" where a resumed job goes on only once the pool has
    devices for it, else "".
    """

    job: str
    what: str
    node: str
    on_nodes: list[str]
    attempt: int
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
    waits_for: str


def preview(
    job: JobSnapshot,
    request: MoveRequest,
    why_not: str,
    *,
    why_no_dump: str,
    dry_run: bool,
    waits_for: str = "",
) -> MovePreview:
    """What happens to `job`. `why_no_dump`: why its processes are not dumped, "" where they may be."""
    without = request.node
    resume_step = restart_cost.resume_step(job, without=without)
    lost_steps = max(job.last_step - resume_step, 0)
    return {
        "job": job.job,
        "what": request.what,
        "node": without,
        "on_nodes": list(request.nodes),
        "attempt": job.attempt,
        "state": str(job.phase),
        "step": job.last_step,
        "resume_step": resume_step,
        "lost_steps": lost_steps,
        "price": restart_cost.of_stop(job, lost_steps=lost_steps),
        "process_dump": process_dump(request, why_no_dump, resume_step),
        "standby": min((n.name for n in job.standbys()), default=None) if without else None,
        "dry_run": dry_run,
        "can_do": not why_not,
        "why_not": why_not,
        "waits_for": waits_for,
    }


def process_dump(request: MoveRequest, why_no_dump: str, resume_step: int) -> str:
    """Say why ranks are not dumped as they are, and from what the job goes on. "" where they are dumped.

    >>> request = MoveRequest(what="preempt", reason="noon", actor="ann")
    >>> process_dump(request, "criu is not installed on a", 7)
    'processes are not dumped (criu is not installed on a): the job goes on from a saved step'
    """
    why = why_no_dump or ("" if request.what == "preempt" else _PREEMPTED)
    if not why:
        return ""
    start = "a saved step" if resume_step >= 0 else "what is saved until then"
    return f"processes are not dumped ({why}): the job goes on from {start}"


def lacking(lacks: Mapping[str, str]) -> str:
    """What hosts lack to dump processes, from what each one lacks by its name. "" where all of them can.

    >>> lacking({"a": "criu is not installed", "b": "criu is not installed", "c": ""})
    'criu is not installed on a, b'
    """
    hosts: dict[str, list[str]] = defaultdict(list)
    for name in sorted(lacks):
        if lacks[name]:
            hosts[lacks[name]].append(name)
    return "; ".join(
        f"{why} on {', '.join(names[:4])}{', ...' * (len(names) > 4)}" for why, names in hosts.items()
    )
