"""What a job could go on from, and asking its ranks for something newer."""

from __future__ import annotations

import asyncio

from pulsetrain.protocol.messages import SaveFrom
from pulsetrain.recovery import world
from pulsetrain.recovery.state import JobState


def restorable_without(job: JobState, node: str) -> int:
    """The newest step that the job could go on from if `node` were replaced now, -1 for none.

    With "" for `node`, the newest step that it could go on from as it is.
    """
    members = job.members
    healthy = [n.name for n in members.active() if n.name != node]
    held = {name: held for name, held in members.held().items() if name != node}
    after = world.replace_nodes(members.world, healthy, [n.hello for n in members.standbys()])
    plan = world.plan_restore(after, held, job.restarts.unrestorable)
    own = job.own_checkpoints.newest()
    return max(plan.step, own.step if own is not None and own.complete else -1)


async def ask_for_saves(job: JobState, step: int) -> None:
    """Ask all ranks to save every step from `step` on. An agent that cannot says so, and that is all."""
    await asyncio.gather(
        *(job.ask(n, SaveFrom(id=job.next_id(), step=max(step, 0))) for n in job.members.active())
    )
