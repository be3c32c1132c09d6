"""Pre-empts a job by dumping its processes as they stand, and brings them back.

Only a job of one node, on a host that can, and only where no `Checkpointer` saves each step anyway. Where
it does not work, the job goes on, and the pre-emption goes on from a saved step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsetrain.protocol.messages import DumpRanks, Reply, Start, World
from pulsetrain.recovery import hold, kept_moves, resume_nodes
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.move_preview import ONLY, lacking
from pulsetrain.recovery.move_request import Hold, Image, Move, MoveRequest
from pulsetrain.recovery.nodes import CLOSED, GONE, NO_ANSWER, Node
from pulsetrain.recovery.resizing import own_devices
from pulsetrain.recovery.saves import has_checkpointer, restorable_without
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event

LEFT = "image_kept"
"""in an agent's reply to a restore that failed: whether it can be tried again"""
TURNS = "its ranks take turns on devices"
DUMP_TIMEOUT_S = 120.0
EVALUATES_S = 600.0
"""A hold is tried for so long at most. A job that never comes to one is slower meanwhile."""
POLL_S = 0.02


def why_not(job: JobState) -> str:
    """Why the processes that run now are not dumped, "" where they may be: what hosts lack, or the job."""
    world, active = job.members.world, job.members.active()
    lacks = lacking({node.name: node.hello.dump_lacks for node in active})
    if lacks:
        return lacks
    if len(world) != 1 or has_checkpointer(job):
        return ONLY
    if not active:
        return f"node {world[0].node} cannot be reached"
    return TURNS if _take_turns(job) else ""


def _take_turns(job: JobState) -> bool:
    """Whether ranks share devices. What they share then would not be shared by what is restored."""
    [member] = job.members.world
    wanted = job.resizing.devices or own_devices(member, job.members.nodes[member.node].hello)
    return wanted < member.nproc


def possible(job: JobState) -> bool:
    """Whether the processes that run now may be dumped."""
    return len(job.members.world) == 1 and not why_not(job)


def take(job: JobState, wait_s: float, on_end: Callable[[], None]) -> tuple[Image, Hold]:
    """Begin to bring all ranks to a stand and dump them. `on_end` is called once they are, or cannot be.

    Where nothing else has the job's state, they have `wait_s` for it (up to `EVALUATES_S`): perhaps they
    evaluate just now.
    """
    image = Image(node=job.members.world[0].node, attempt=job.attempt.number)

    def settled() -> None:
        job.services.background.once("image", _dump(job, image, held, on_end))

    held = hold.begin(job, settled, least_s=0.0 if job.can_resume() else min(wait_s, EVALUATES_S))
    return image, held


async def _dump(job: JobState, image: Image, held: Hold, on_end: Callable[[], None]) -> None:
    try:
        why_not = await _take(job, image, held)
    except Exception as error:  # whatever was answered: the move must not wait for it for ever
        _miss(job, image, held, f"{type(error).__name__}: {error}")
        on_end()
        raise
    if why_not:
        _miss(job, image, held, why_not)
    on_end()


async def _take(job: JobState, image: Image, held: Hold) -> str:
    """Dump the ranks. Returns why they were not, "" where they were."""
    if held.state != "stands":
        return held.why_not or "the ranks do not stand"
    if job.attempt.number != image.attempt:
        return "the ranks were launched anew"
    name = f"attempt-{image.attempt}-{held.number}"
    command = DumpRanks(id=job.next_id(), attempt=image.attempt, name=name, limit_s=DUMP_TIMEOUT_S)
    reply = await job.ask(job.members.nodes[image.node], command, DUMP_TIMEOUT_S)
    if reply.error:
        return reply.error
    image.dump_ns, image.bytes = int(reply.data["dump_ns"]), int(reply.data["bytes"])
    image.stored_bytes = int(reply.data.get("stored_bytes", image.bytes))
    image.new_bytes = int(reply.data.get("new_bytes", image.bytes))
    image.name, image.step, image.state = name, job.last_step, "taken"
    return ""


def _miss(job: JobState, image: Image, held: Hold, why_not: str) -> None:
    """The ranks run on."""
    image.state, image.why_not = "missed", why_not
    hold.release(job, held)
    job.write("image_missed", image.row(), node=image.node)


async def restore(job: JobState) -> Event | None:
    """Bring the processes of the job's image back. `STARTED` once they run.

    Else it is written down why not, and what follows. `PREEMPT`: nothing but the image has the job's state,
    so the job stays pre-empted. None: it is to be launched without an image.
    """
    image = job.recovery.image if job.recovery else None
    if image is None or job.recovery is None or not image.name:
        return None
    job.members.chosen = None
    kept_moves.keep_restoring(job)
    job.attempt = Attempt(number=job.attempt.number + 1, restore_step=image.step, image=image)
    job.members.refresh_world()
    world = [member.node for member in job.members.world]
    job.write("attempt_started", {"world": world, "image": image.name, "sources": {}})
    job.keep_world()
    job.attempt.started_ns = job.now_ns()
    if world != [image.node]:
        job.recovery.image = None
        return _not_restored(job, image, "the job has another node now", left=True)
    await job.services.memory.stored()
    job.recovery.image = None  # it is used once
    reply = await _ask_to_restore(job, image)
    if reply.error:
        return _not_restored(job, image, reply.error, left=bool(reply.data.get(LEFT, True)))
    job.attempt.image = None
    kept_moves.keep_restored(job)
    took_ns = reply.data.get("restore_ns")
    told = {"image": image.name, "step": image.step, "restore_ns": took_ns if isinstance(took_ns, int) else 0}
    job.write("image_restored", told, node=image.node)
    job.attempt.launched = True
    job.recovery.launched(job.now_ns(), fetch_ns=0, step=image.step)
    job.recovery.resumed_by = "image"
    return Event.STARTED


async def _ask_to_restore(job: JobState, image: Image) -> Reply:
    """What the node of the image says. No error where its ranks run."""
    [member] = job.members.world
    job.settle_run()
    command = Start(
        id=job.next_id(),
        job=job.name,
        attempt=job.attempt.number,
        node_rank=member.node_rank,
        world=World(job.members.world),
        store_address="",
        store_port=0,
        restore_step=image.step,
        peer_key=job.services.peer_key(job.name),
        run=job.run,
        image=image.name,
    )
    node = job.members.nodes[member.node]
    reply = await job.ask(node, command, DUMP_TIMEOUT_S)
    if _is_lost(reply.error) and await _runs(job, node, DUMP_TIMEOUT_S if reply.error == CLOSED else 0.0):
        return Reply(id=command.id, node=node.name)
    return reply


def _is_lost(error: str) -> bool:
    """Whether an answer did not come, so that the ranks may run all the same."""
    return error.startswith((CLOSED, NO_ANSWER))


def _not_restored(job: JobState, image: Image, why_not: str, *, left: bool) -> Event | None:
    """`left`: the image may still be restored."""
    stays, saved = left and resume_nodes.has_only_image(job), restorable_without(job, "")
    if stays:
        follows = "it stays pre-empted and keeps its image: resume it again, or begin anew (--lose-progress)"
    elif saved >= 0:
        follows = f"it goes on from step {saved}"
    else:
        follows = f"it begins anew, and {image.step + 1} steps are lost"
    told = {**image.row(), "why_not": why_not, "follows": follows}
    job.write("image_missed", told, node=image.node)
    if stays:
        _stay(job, image, why_not, unknown=_is_lost(why_not))
        return Event.PREEMPT
    return None


def _stay(job: JobState, image: Image, why_not: str, *, unknown: bool) -> None:
    """The job is pre-empted again. What is told of this attempt from now on stops it no other way.

    `unknown`: its node has not said whether they were restored. It may say so yet.
    """
    if job.move is None or job.move.request.what != "preempt":
        reason = f"its processes were not restored: {why_not}"
        job.move = Move(
            request=MoveRequest(what="preempt", reason=reason, actor="controller"),
            asked_ns=job.now_ns(),
            asked_s=job.services.clock.monotonic_s(),
            newer_than=image.step,
        )
    job.move.image, job.move.from_step = image, image.step
    job.move.restoring = unknown
    kept_moves.keep(job, job.move, stopped_ns=job.now_ns())
    job.attempt = Attempt(number=job.attempt.number + 1)
    job.move.acted_in = job.attempt.number


async def _runs(job: JobState, node: Node, wait_s: float) -> bool:
    """Whether a node that has not answered says within `wait_s` that it runs the present attempt.

    As long as it says that it restores the ranks, it is waited for.
    """
    clock, number = job.services.clock, job.attempt.number
    until_s, has_begun = clock.monotonic_s() + wait_s, False
    while node.state not in GONE and not job.ended_by:
        beat = node.heartbeat
        restores = number in (node.hello.restoring, beat.restoring if beat is not None else -1)
        if not restores:
            runs = node.connected and beat is not None and beat.attempt == number
            if runs or has_begun or clock.monotonic_s() >= until_s:
                return runs
        has_begun |= restores
        await asyncio.sleep(POLL_S)
    return False
