"""Which ranks keep their processes where a job goes on in another attempt, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable

from pulsetrain.protocol.messages import Reply, Stop
from pulsetrain.recovery import late_ranks
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event, Phase

KEEPING = (Event.RANK_FAILED, Event.NODE_LOST, Event.HANG, Event.EVICT, Event.GROW)
"""Faults that leave healthy ranks behind."""


def stop_command(job: JobState, reason: str) -> Stop:
    """The command that ends a node's ranks. Where the job goes on, it keeps the processes of survivors."""
    policy = job.services.policy
    fault = job.recovery.fault if job.recovery else None
    why_not = why_none(job)
    keep = not why_not
    if job.recovery is not None:
        job.recovery.none_kept = why_not
    at_fault = (fault.rank,) if keep and fault is not None and fault.rank >= 0 else ()
    return Stop(
        id=job.next_id(),
        reason=reason,
        keep=keep,
        wake_s=policy.survivor_wake_s,
        fresh=at_fault,
        image=late_ranks.dumped_as(job),
    )


def why_none(job: JobState) -> str:
    """Why no process is kept at this stop, "" where those can be that are healthy.

    After an attempt without a step all start anew: perhaps something in a kept process is broken.
    """
    fault = job.recovery.fault if job.recovery else None
    if job.phase is not Phase.SUSPENDING or fault is None or fault.event not in KEEPING:
        return "the job does not go on at once"
    if job.services.policy.survivor_wake_s <= 0:
        return "survivor_wake_s is 0"
    if job.updates.changes_program:
        return "an update of the program needs new processes"
    if not job.attempt.first_step_done:
        return "the attempt before has done no step"
    return ""


def note_parked(job: JobState, replies: Iterable[Reply]) -> None:
    """Remember how many processes of each node wait to go on. An agent that does not say so has none."""
    if job.recovery is not None:
        job.recovery.parked |= {reply.node: int(reply.data.get("parked", 0)) for reply in replies}


def all_parked(job: JobState) -> bool:
    """Whether every healthy rank of the nodes that are left waits in its process to go on."""
    recovery, members = job.recovery, job.members
    if recovery is None:
        return False
    at_fault = recovery.fault.node if recovery.fault.rank >= 0 else ""
    missing = [
        node.hello.nproc_per_node - recovery.parked.get(node.name, 0) - (node.name == at_fault)
        for node in members.active()
    ]
    return bool(missing) and max(missing) <= 0


def tell(job: JobState, replies: Iterable[Reply]) -> None:
    """Write down which ranks go on in their processes, and why each other one started anew."""
    kept: list[int] = []
    anew: dict[str, str] = {}
    for reply in replies:
        kept += [int(rank) for rank in reply.data.get("kept", ())]
        anew |= {str(rank): str(why) for rank, why in reply.data.get("not_kept", {}).items()}
    if job.recovery is not None:
        detail = {"kept": sorted(kept), "started_anew": anew, "none_kept": job.recovery.none_kept}
        job.write("survivors", detail)
