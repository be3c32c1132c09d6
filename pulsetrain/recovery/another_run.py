"""Another run of a job takes over nothing of what persons wanted of the one before.

A run may end while its hub is down. The next hub then knows of wishes that nobody has taken back, and agents
come that have nothing to do with them.
"""

from __future__ import annotations

from pulsetrain.recovery import elasticity
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase


def look(job: JobState, quiet_s: float) -> None:
    """Forget what was wanted of an earlier run, before it has an effect on this one.

    `quiet_s` is the time since a node joined last. Where ranks run, or an agent of the earlier world is here,
    it is the same run. A job that was stopped stays so: it may go on from what it has saved.
    """
    members = job.members
    if not job.inherits or job.phase is not Phase.FORMING:
        return
    usable = [node for node in members.present() if node.usable]
    if members.survived():
        job.inherits = False
    elif members.restoring() or any(node.busy for node in usable):
        return
    elif job.resizing.sizes.fit(len(usable)) and not elasticity.awaits_world(job, quiet_s):
        job.inherits = False
        _forget(job)


def _forget(job: JobState) -> None:
    move, resizing = job.move, job.resizing
    if move is not None and move.image is None:
        why_not = "it was asked of an earlier run of the job"
        job.write("preempt_dropped", {"why_not": why_not}, actor=move.request.actor)
        job.services.memory.preemption(job.name, None)
        job.move = None
    if resizing.cap or resizing.devices:
        resizing.cap = resizing.devices = 0
        job.keep_size()


def forget_own_checkpoints(job: JobState) -> None:
    """Whether the script reads what it writes was seen of another run, perhaps with other arguments."""
    job.own_checkpoints.ignored = job.own_checkpoints.proven = False
