"""Pre-empts a job by dumping its processes as they stand, and brings them back.

Only a job of one node, on a host that can, and only where no `Checkpointer` saves each step anyway. Where
it does not work, the job goes on, and the pre-emption goes on from a saved step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsetrain.protocol.messages import DumpRanks, Start, World
from pulsetrain.recovery import hold
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.move_preview import ONLY, lacking
from pulsetrain.recovery.move_request import Hold, Image
from pulsetrain.recovery.nodes import CLOSED, GONE, Node
from pulsetrain.recovery.saves import has_checkpointer
from pulsetrain.recovery.state import JobState

DUMP_TIMEOUT_S = 120.0
POLL_S = 0.02


def why_not(job: JobState) -> str:
    """Why the processes that run now are not dumped, "" where they may be: what hosts lack, or the job."""
    world, active = job.members.world, job.members.active()
    lacks = lacking({node.name: node.hello.dump_lacks for node in active})
    if lacks:
        return lacks
    if len(world) != 1 or has_checkpointer(job):
        return ONLY
    return "" if active else f"node {world[0].node} cannot be reached"


def possible(job: JobState) -> bool:
    """Whether the processes that run now may be dumped."""
    return len(job.members.world) == 1 and not why_not(job)


def take(job: JobState, on_end: Callable[[], None]) -> tuple[Image, Hold]:
    """Begin to bring all ranks to a stand and dump them. `on_end` is called once they are, or cannot be."""
    image = Image(node=job.members.world[0].node, attempt=job.attempt.number)

    def settled() -> None:
        job.services.background.once("image", _dump(job, image, held, on_end))

    held = hold.begin(job, settled)
    return image, held


async def _dump(job: JobState, image: Image, held: Hold, on_end: Callable[[], None]) -> None:
    if held.state != "stands":
        image.why_not = held.why_not
    elif job.attempt.number != image.attempt:
        image.why_not = "the ranks were launched anew"
    else:
        name = f"attempt-{image.attempt}-{held.number}"
        command = DumpRanks(id=job.next_id(), attempt=image.attempt, name=name)
        reply = await job.ask(job.members.nodes[image.node], command, DUMP_TIMEOUT_S)
        image.why_not = reply.error
        if not reply.error:
            image.name, image.step, image.state = name, job.last_step, "taken"
            image.dump_ns, image.bytes = int(reply.data["dump_ns"]), int(reply.data["bytes"])
            image.stored_bytes = int(reply.data.get("stored_bytes", image.bytes))
            image.new_bytes = int(reply.data.get("new_bytes", image.bytes))
    if image.state == "asked":
        image.state = "missed"
        hold.release(job, held)
        job.write("image_missed", image.row(), node=image.node)
    on_end()


async def restore(job: JobState) -> bool:
    """Bring the processes of the job's image back. Whether they run. Else it is written down why not."""
    image = job.recovery.image if job.recovery else None
    if image is None or job.recovery is None or not image.name:
        return False
    job.recovery.image = None  # it is used once
    job.services.memory.preemption(job.name, None)
    members = job.members
    job.attempt = Attempt(number=job.attempt.number + 1, restore_step=image.step)
    members.refresh_world()
    why_not = "" if [m.node for m in members.world] == [image.node] else "the job has another node now"
    restore_ns = 0
    job.write(
        "attempt_started", {"world": [m.node for m in members.world], "image": image.name, "sources": {}}
    )
    job.keep_world()
    job.attempt.started_ns = job.now_ns()
    if not why_not:
        member = members.world[0]
        command = Start(
            id=job.next_id(),
            job=job.name,
            attempt=job.attempt.number,
            node_rank=member.node_rank,
            world=World(members.world),
            store_address="",
            store_port=0,
            restore_step=image.step,
            peer_key=job.services.peer_key(job.name),
            image=image.name,
        )
        node = members.nodes[member.node]
        reply = await job.ask(node, command, DUMP_TIMEOUT_S)
        why_not, restore_ns = reply.error, int(reply.data.get("restore_ns", 0))
        if reply.error == CLOSED and await _runs(job, node):
            why_not = ""
    if why_not:
        job.write("image_missed", {**image.row(), "why_not": why_not}, node=image.node)
        return False
    told = {"image": image.name, "step": image.step, "restore_ns": restore_ns}
    job.write("image_restored", told, node=image.node)
    job.attempt.launched = True
    job.recovery.launched(job.now_ns(), fetch_ns=0, step=image.step)
    job.recovery.resumed_by = "image"
    return True


async def _runs(job: JobState, node: Node) -> bool:
    """Whether a node whose connection closed is back in time, and says that it runs the present attempt."""
    clock = job.services.clock
    until_s = clock.monotonic_s() + DUMP_TIMEOUT_S
    while node.state not in GONE and not job.ended_by and clock.monotonic_s() < until_s:
        if node.connected and node.heartbeat is not None and node.heartbeat.attempt == job.attempt.number:
            return True
        await asyncio.sleep(POLL_S)
    return False
