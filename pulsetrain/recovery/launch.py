"""Starting the next attempt of a job on its present world."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pulsetrain.protocol.messages import Reply, Start, WorldNode
from pulsetrain.recovery import (
    begun_anew,
    device_resizing,
    elasticity,
    faults,
    images,
    rendezvous,
    survivors,
    updating,
    world,
)
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.nodes import has_answered
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.rendezvous import Rendezvous
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event
from pulsetrain.recovery.world_parts import NEEDS_WORLD, WorldParts

PROGRAM_REFUSED = "program_refused"
DOUBTFUL_FAILURES = 2
"""Attempts from one checkpoint that failed by themselves, after which an older one is loaded."""
LAST_REPLIES_S = 0.5
"""So long other nodes may still reply once one of them is gone. They may load for hours."""


async def launch(job: JobState) -> Event | Fault | None:
    """Start an attempt from the newest step that all ranks can reach. `STARTED`, or why it failed.

    None where something else has ended it, see `Attempt.overtaken`.
    """
    restored = await images.restore(job)
    if restored is not None:
        job.keep_stop(None)
        return restored
    members = job.members
    newest = max(job.attempt.number, members.stored_attempt())  # files of no two attempts may have one name
    if job.first_attempt < 0:
        job.first_attempt = 0 if job.attempt.adopted else newest + 1
        job.run = "" if job.attempt.adopted else secrets.token_hex(4)
    job.attempt = Attempt(number=newest + 1)
    members.refresh_world()
    job.settle_run()
    plan = _plan(job)
    job.attempt.restore_step = plan.step
    own = job.own_checkpoints.newest()
    updating.take(job, plan.step if own is None else max(plan.step, own.step))
    if job.updates.trial is not None:
        await job.services.memory.stored()
    store = await rendezvous.open_store(job)
    detail = {
        "world": [m.node for m in members.world],
        "restore_step": plan.step,
        "sources": {str(r): s for r, s in plan.sources.items()},
    }
    job.write("attempt_started", detail)
    if plan.abandoned:
        job.write("restore_abandoned", {"step": plan.step})
    if plan.step < 0:
        begun_anew.keep(job)
    else:
        job.keep_stop(None)
    job.keep_world()
    if job.move is None or job.move.request.what != "preempt":
        job.services.memory.preemption(job.name, None)  # also where a node was lost since the resume
    if plan.step < 0:
        elasticity.tell_unfit(job)
        unread = members.waits_for_storage()
        if unread:
            job.write("storage_not_read", {"nodes": unread})
    job.attempt.started_ns = job.now_ns()
    if isinstance(store, Fault):
        return store
    replies = await _start_all(job, plan, store)
    if not job.attempt.overtaken.is_set() and not rendezvous.is_reached(job, store, replies):
        store = await rendezvous.on_first_node(job)
        if isinstance(store, Fault):
            return store
        replies = await _start_all(job, plan, store)
    return None if job.attempt.overtaken.is_set() else _result(job, plan, replies)


def _plan(job: JobState) -> world.RestorePlan:
    """The newest step that all ranks can reach. One from which attempts failed again and again is left out.

    Perhaps its content is bad. Where there is no older one, it is better than none.
    """
    members, unrestorable = job.members, job.restarts.unrestorable
    doubtful = {step for step, times in job.restarts.failed_from.items() if times >= DOUBTFUL_FAILURES}
    avoided = {(rank, step) for step in doubtful for rank in range(members.world_size)}
    if avoided:
        older = members.plan_restore(members.world, unrestorable | avoided)
        if older.step >= 0:
            return older
    return members.plan_restore(members.world, unrestorable)


async def _start_all(job: JobState, plan: world.RestorePlan, store: Rendezvous) -> list[Reply]:
    """What nodes reply, in the order of the world. Nobody waits for the rest once the launch is in vain."""
    parts = WorldParts(job.members.world, _holders(job, plan))
    asked = [asyncio.ensure_future(_start(job, member, parts, plan, store)) for member in parts.whole]
    overtaken = asyncio.ensure_future(job.attempt.overtaken.wait())
    try:
        await _until_decided(asked, overtaken)
        return [task.result() for task in asked if task.done()]
    finally:
        for task in (*asked, overtaken):
            task.cancel()
        await asyncio.gather(*asked, overtaken, return_exceptions=True)


async def _until_decided(asked: Sequence[asyncio.Future[Reply]], overtaken: asyncio.Future[Any]) -> None:
    """Wait until all have replied, one of them is gone, or the launch is overtaken."""
    left: set[asyncio.Future[Any]] = set(asked)
    while left and not overtaken.done():
        done, _ = await asyncio.wait((*left, overtaken), return_when=asyncio.FIRST_COMPLETED)
        replied = left & done
        left -= replied
        if left and any(not has_answered(task.result()) for task in replied):
            await asyncio.wait(left, timeout=LAST_REPLIES_S)
            return


async def _start(
    job: JobState, member: WorldNode, parts: WorldParts, plan: world.RestorePlan, store: Rendezvous
) -> Reply:
    """Start one node. Where it needs more of the world than it was told, it is told the whole."""
    node, timeout_s = job.members.nodes[member.node], job.services.policy.start_timeout_s
    command = _command(job, member, plan, store)
    outside = _outside(job, command.sources.values(), parts)
    command = replace(command, holders=(*parts.holders, *outside))
    part = parts.of(node, member, (*command.sources.values(), *command.shards.values()))
    if part is not parts.whole:
        told = replace(command, world=part, world_nodes=len(parts.whole))
        reply = await job.ask(node, told, timeout_s)
        node.needs_world = bool(reply.data.get(NEEDS_WORLD))
        if not node.needs_world:
            return reply
    return await job.ask(node, replace(command, id=job.next_id(), world=parts.whole), timeout_s)


def _command(job: JobState, member: WorldNode, plan: world.RestorePlan, store: Rendezvous) -> Start:
    """Start this node's ranks, without the world."""
    return Start(
        id=job.next_id(),
        job=job.name,
        attempt=job.attempt.number,
        node_rank=member.node_rank,
        world=(),
        store_address=store.addresses[member.node],
        store_port=store.port,
        check_store=store.on_hub,
        restore_step=plan.step,
        sources={str(r): plan.sources[r] for r in member.ranks if r in plan.sources},
        replica_attempt=plan.replica_attempt,
        saved_attempt=plan.saved_attempt,
        saved_history=plan.saved_history,
        saved_world=plan.shards.world,
        shards={str(rank): source for rank, source in plan.shards.sources.items()},
        copies={str(rank): number for rank, number in plan.shards.copies.items()},
        own_checkpoints=job.own_checkpoints.files(member.ranks),
        devices=device_resizing.devices_of(job, member),
        peer_key=job.services.peer_key(job.name),
        program=job.updates.program,
        first_attempt=job.first_attempt,
        run=job.run,
    )


def _holders(job: JobState, plan: world.RestorePlan) -> tuple[WorldNode, ...]:
    """Nodes outside the world that have a part of what is put together."""
    if not plan.shards.sources:
        return ()
    members = job.members
    inside = {member.node for member in members.world}
    names = {source.removeprefix("peer:") for source in plan.shards.sources.values()} - inside - {"storage"}
    return tuple(world.world_node(members.nodes[name].hello, -1) for name in sorted(names))


def _outside(job: JobState, sources: Iterable[str], parts: WorldParts) -> tuple[WorldNode, ...]:
    """Nodes outside the world in whose memory ranks find what they saved, as after a resume elsewhere."""
    names = {source.removeprefix("peer:") for source in sources if source.startswith("peer:")}
    nodes = job.members.nodes
    return tuple(world.world_node(nodes[name].hello, -1) for name in sorted(names) if name not in parts)


def _unaware(job: JobState, replies: Sequence[Reply]) -> Reply | None:
    """An agent that has launched its own program, because it is too old to know of updates."""
    number = job.updates.program.number
    reply = next((r for r in replies if number and int(r.data.get("program", 0)) != number), None)
    if reply is None:
        return None
    job.attempt.program_refused = "its agent is of a version that knows no updates"
    return Reply(id=reply.id, node=reply.node, error=job.attempt.program_refused)


def _result(job: JobState, plan: world.RestorePlan, replies: Sequence[Reply]) -> Event | Fault:
    job.restarts.unrestorable |= {tuple(r.data["unrestorable"]) for r in replies if "unrestorable" in r.data}
    job.keep_restarts()
    elasticity.note_refusal(
        job, [str(r.data["not_reshardable"]) for r in replies if "not_reshardable" in r.data]
    )
    refused = next((r for r in replies if PROGRAM_REFUSED in r.data), None)
    job.attempt.program_refused = str(refused.data[PROGRAM_REFUSED]) if refused is not None else ""
    failed = next((r for r in replies if r.error), None) or _unaware(job, replies)
    if failed is not None:
        return faults.launch_failed(failed.node, failed.error, job.attempt.number, job.now_ns())
    job.attempt.launched = True
    survivors.tell(job, replies)
    if job.recovery is not None:
        loads = [int(ns) for reply in replies for ns in reply.data.get("load_ns", {}).values()]
        job.recovery.launched(job.now_ns(), fetch_ns=max(loads, default=0), step=plan.step)
    return Event.STARTED
