"""What a job could go on from, and asking its ranks for something newer."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from pulsetrain.protocol.messages import RankStatus, SaveFrom
from pulsetrain.recovery.move_request import Hold
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.state import JobState

SAVING, STANDS = "checkpoint", "hold"  # phases
WAITS_S = 3.0  # so long after others stand, a rank that waits for an operation is taken to wait for them
UNKNOWN = -1  # of which attempt a checkpoint is: an older agent does not say
TORN_S = 120.0  # so long beyond what was asked for a checkpoint is waited for that is being written
LEAD_S = 3.0  # a heartbeat is up to a second old, and the request takes its way to every rank


def restorable_without(job: JobState, node: str) -> int:
    """The newest step that the job could go on from if `node` were replaced now, -1 for none.

    With "" for `node`, the newest step that it could go on from as it is. Who takes over the ranks changes
    where they restore from, not the step.
    """
    return max(_planned_without(job, node), job.own_checkpoints.resumable_step())


def proven_without(job: JobState, node: str) -> int:
    """The same for who stops a job that trains well. That the script reads its own checkpoint must be known.

    What it does after a restart shows that. Until then a stop may cost all steps.
    """
    own = job.own_checkpoints
    return max(_planned_without(job, node), own.resumable_step() if own.proven else -1)


def _planned_without(job: JobState, node: str) -> int:
    return job.members.plan_restore(job.members.world, job.restarts.unrestorable, without=node).step


def is_saving(job: JobState) -> bool:
    """Whether a rank is inside a call that writes a checkpoint."""
    return _any_saves(job.members.statuses(job.attempt.number))


def _any_saves(statuses: Iterable[RankStatus]) -> bool:
    return any(status.last_phase == SAVING and status.state != "gone" for status in statuses)


def is_writing(job: JobState) -> bool:
    """Whether the script may be in the middle of a checkpoint of its own. To end it there would tear that.

    A file that is there already is no proof: others may follow. The ranks that wrote it have gone on once
    they have completed another step. Nothing is known of a script without steps.
    """
    statuses = job.members.statuses(job.attempt.number)
    own = job.own_checkpoints.newest()
    return _any_saves(statuses) or (own is not None and any(_writers(job, statuses, own.step)))


def is_written(job: JobState, held: Hold) -> bool:
    """Whether each rank that writes has written all of the checkpoint behind which some stand.

    It stands too, or has done another step. Or it has waited for other ranks for a while, as those of another
    pipeline stage do.
    """
    statuses = job.members.statuses(job.attempt.number)
    waits = job.services.clock.monotonic_s() - held.stood_s > WAITS_S
    begun = job.own_checkpoints.begun_step(job.attempt.number)
    return not _any_saves(statuses) and all(
        status.rank in held.standing or status.last_phase == STANDS or (waits and status.waits_in)
        for status in _writers(job, statuses, begun)
    )


def _writers(job: JobState, statuses: Iterable[RankStatus], step: int) -> Iterator[RankStatus]:
    """Ranks that write checkpoints of the script's own, and have not gone on since `step`."""
    own = job.own_checkpoints.newest()
    if own is None or own.attempt != job.attempt.number:
        return
    for status in statuses:
        if status.rank in own.ranks and status.state != "gone" and 0 <= status.last_step <= step:
            yield status


def has_checkpointer(job: JobState) -> bool:
    """Whether ranks save through a `Checkpointer`, which can be asked. Other scripts save by themselves."""
    return any(job.members.held().values())


def saves_every_step(job: JobState) -> bool:
    """Whether every rank has its two newest steps in memory, so that hardly a step would be lost.

    What an earlier attempt saved does not count: its ranks may have been asked to.
    """
    steps: dict[int, list[int]] = defaultdict(list)
    for holdings in job.members.held().values():
        for held in holdings:
            if held.tier == "memory" and held.attempt in (UNKNOWN, job.attempt.number):
                steps[held.rank].append(held.step)
    newest = [sorted(of_rank)[-2:] for of_rank in steps.values()]
    return bool(newest) and all(len(two) == 2 and two[1] - two[0] == 1 for two in newest)


def ask_for_saves(job: JobState) -> int:
    """Ask all ranks to save every step from one on that none of them has reached yet. Returns that step.

    So all save the same steps, also where saving is an operation of all ranks together. It is newer than what
    is saved already: right after a launch nobody has reported a step. Nobody waits for the answers: an agent
    that cannot says so, and that is all.
    """
    newest = max(job.last_step, restorable_without(job, ""))
    step = newest + 1 + math.ceil(LEAD_S * job.rate.per_s)
    job.saves_from = job.attempt.number, step
    job.services.background.once("ask for saves", _tell(job, step))
    return step


def end_saves(job: JobState) -> None:
    """Let the ranks save as their script says again, unless something else waits for a saved step."""
    if job.move is None and job.new_share is None:
        job.saves_from = job.attempt.number, -1
        job.services.background.once("end saves", _tell(job, -1))


def tell_again(job: JobState, node: Node) -> None:
    """A node is back that may have missed what was asked for last. All ranks must save the same steps."""
    attempt, step = job.saves_from
    if attempt == job.attempt.number and node.state is NodeState.ACTIVE:
        job.services.background.once("ask for saves", _tell_one(job, node, step))


async def _tell(job: JobState, step: int) -> None:
    await asyncio.gather(*(_tell_one(job, node, step) for node in job.members.active()))


async def _tell_one(job: JobState, node: Node, step: int) -> None:
    await job.ask(node, SaveFrom(id=job.next_id(), step=step))
