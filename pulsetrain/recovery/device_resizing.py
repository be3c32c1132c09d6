"""Lets a running job use another number of devices.

A job of ``--nnodes MIN:MAX`` changes its number of nodes, where N devices are whole nodes and its state fits.
Else the number of ranks stays, and the ranks of each node take turns on its share of the devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.device_sharing import devices_of_nodes
from pulsetrain.protocol.messages import Reply, ShareDevices, WorldNode
from pulsetrain.recovery import elasticity, images, restart_cost
from pulsetrain.recovery.move_preview import MovePreview, preview
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.resizing import own_devices
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase

FOLLOW_S = 5.0
MARGIN_S = 2.0

How = Literal["nodes", "turns", "own"]


class ResizePreview(MovePreview):
    """`how`: by another number of "nodes", by "turns" on fewer devices, or each rank has its "own" again.

    `step_ratio` is how many times as long a step may take as now, where ranks do nothing but compute. `late`
    are ranks that have not obeyed yet. They do so at their next wait for other ranks.
    """

    devices: int
    from_devices: int
    nodes: int
    how: How
    step_ratio: float
    late: list[int]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How a job comes to use `devices`. `share` is that of each node, where ranks take turns."""

    devices: int
    nodes: int
    how: How
    share: tuple[int, ...] = ()
    why_not: str = ""


async def resize(
    job: JobState, request: MoveRequest, snapshot: JobSnapshot, *, dry_run: bool
) -> ResizePreview:
    """Do what is asked for, or say what it would mean.

    Raises `UsageError` where it cannot be done, also where a node does not do its part. Then the others are
    told to go back.
    """
    plan = _plan(job, request.devices)
    why_not = plan.why_not or _busy(job, plan)
    if dry_run:
        why_not = why_not or await _why_nodes_refuse(job, plan)
        return _answer(job, snapshot, request, plan, why_not, dry_run=True)
    if why_not:
        raise UsageError(why_not)
    job.resizing.under_way = True
    try:
        return await _carry_out(job, request, plan, snapshot)
    finally:
        job.resizing.under_way = False


async def _carry_out(
    job: JobState, request: MoveRequest, plan: _Plan, snapshot: JobSnapshot
) -> ResizePreview:
    number = job.attempt.number
    why_not = await _why_nodes_refuse(job, plan)
    if not why_not and (job.attempt.number != number or job.phase is not Phase.RUNNING or job.move):
        why_not = f"job {job.name!r} was stopped or moved meanwhile; try again"
    if why_not:
        raise UsageError(why_not)
    answer = _answer(job, snapshot, request, plan, "", dry_run=False)
    began_ns, before, present = job.now_ns(), answer["from_devices"], _present(job)
    asked = {"reason": request.reason, "devices": plan.devices, "from": before}
    job.write("resize", {**asked, "how": plan.how, "step": job.last_step}, actor=request.actor)
    kept = job.resizing.cap, job.resizing.devices
    _want(job, plan)
    why_not, answer["late"] = await _tell(job, plan, dry_run=False)
    keeps = bool(why_not) and job.attempt.number == number  # a new attempt has what is wanted
    if keeps:
        job.resizing.cap, job.resizing.devices = kept
        job.keep_size()
        await _tell(job, replace(plan, share=present), dry_run=False)
    follow_ns = job.now_ns() - began_ns
    stages = {"stages_ns": {"follow": follow_ns}, "total_ns": follow_ns}
    told = {**asked, "how": plan.how, "late": answer["late"], "why_not": why_not, **stages}
    if plan.how != "nodes":
        job.write("resized", told, actor=request.actor)
    if keeps:
        raise UsageError(f"job {job.name!r} keeps its {before} devices: {why_not}")
    return answer


async def _why_nodes_refuse(job: JobState, plan: _Plan) -> str:
    """Why a node could not do its part, "" where all could."""
    why_not, _ = await _tell(job, plan, dry_run=True)
    return why_not


def devices_of(job: JobState, member: WorldNode) -> int:
    """On how many devices the ranks of a node take turns. 0: as its agent was started."""
    return _dealt(job, (member,))[0]


def _dealt(job: JobState, members: Sequence[WorldNode]) -> list[int]:
    """`devices_of` each of these nodes."""
    devices, nodes = job.resizing.devices, len(job.members.world)
    if not devices:
        return [0] * len(members)
    shares = devices_of_nodes(devices, nodes)
    return [max(1, min(shares[member.node_rank], member.nproc)) for member in members]


def _present(job: JobState) -> tuple[int, ...]:
    """On how many devices the ranks of each node compute now."""
    return _of_members(job, job.members.world)


def _of_members(job: JobState, members: Sequence[WorldNode]) -> tuple[int, ...]:
    nodes = job.members.nodes
    hellos = [nodes[member.node].hello if member.node in nodes else None for member in members]
    both = zip(members, _dealt(job, members), hellos, strict=True)
    return tuple(share or own_devices(member, hello) for member, share, hello in both)


def _plan(job: JobState, devices: int) -> _Plan:
    world, sizes = job.members.world, job.resizing.sizes
    if not world:
        return _Plan(devices=devices, nodes=0, how="own", why_not=f"job {job.name!r} runs no ranks yet")
    nproc, nodes = world[0].nproc, len(world)
    wanted, left = divmod(devices, nproc)
    why_not = "" if left else f"a node has {nproc} devices"
    if sizes.elastic and not left and wanted != nodes and sizes.fit(wanted) == wanted:
        why_not = elasticity.why_not_size(job, wanted)
        if not why_not:
            return _Plan(devices=devices, nodes=wanted, how="nodes")
    if devices > nproc * nodes:
        most = nproc * (sizes.largest if sizes.elastic else nodes)
        refused = f"devices = {devices}: allowed: {nodes} to {most}" + (f"; {why_not}" if why_not else "")
        return _Plan(devices=devices, nodes=nodes, how="own", why_not=refused)
    if devices < nodes:
        refused = f"devices = {devices}: allowed: {nodes} or more, one for each node of the job"
        return _Plan(devices=devices, nodes=nodes, how="turns", why_not=refused)
    how: How = "own" if devices == nproc * nodes else "turns"
    return _Plan(devices=devices, nodes=nodes, how=how, share=tuple(devices_of_nodes(devices, nodes)))


def _busy(job: JobState, plan: _Plan) -> str:
    if plan.how == "nodes" and job.services.policy.observe_only:
        return "the hub only observes (observe_only): it stops no job to change its number of nodes"
    if job.phase is not Phase.RUNNING:
        return f"job {job.name!r} is {job.phase}; try again when it runs"
    if job.resizing.under_way:
        return f"job {job.name!r} is being resized already"
    return f"job {job.name!r} is about to be moved already ({job.move.request.what})" if job.move else ""


def _want(job: JobState, plan: _Plan) -> None:
    """Keep what is wanted for this attempt, the next ones, and a new hub."""
    resizing = job.resizing
    if plan.how != "turns":
        resizing.cap = 0 if plan.nodes == resizing.sizes.largest else plan.nodes
    resizing.devices = 0 if plan.how == "nodes" else plan.devices
    job.keep_size()


async def _tell(job: JobState, plan: _Plan, *, dry_run: bool) -> tuple[str, list[int]]:
    """Tell each node its share of the devices. Returns why one refuses, and the ranks that are late."""
    if plan.how == "nodes":
        return "", []
    missing = [member.node for member in job.members.world if member.node not in job.members.nodes]
    if missing:  # a hub that only observes goes on without an agent that has not reported to it
        return f"node {missing[0]}: its agent has not reported to this hub", []
    if not dry_run:
        job.resizing.told_in = job.attempt.number
    asked = [
        _tell_one(job, job.members.nodes[member.node], share, dry_run=dry_run)
        for member, share in zip(job.members.world, plan.share, strict=True)
    ]
    replies = await asyncio.gather(*asked)
    why_not = next((f"node {r.node}: {r.error}" for r in replies if r.error), "")
    return why_not, [int(rank) for reply in replies for rank in reply.data.get("late", ())]


async def _tell_one(job: JobState, node: Node, share: int, *, dry_run: bool = False) -> Reply:
    command = ShareDevices(id=job.next_id(), devices=share, timeout_s=FOLLOW_S, dry_run=dry_run)
    return await job.ask(node, command, FOLLOW_S + MARGIN_S)


def tell_again(job: JobState, *back: Node) -> None:
    """Nodes are back. They may have missed what they were told last, or that the job keeps what it had."""
    resizing, number = job.resizing, job.attempt.number
    if not resizing.devices and resizing.told_in != number:
        return
    active = {n.name: n for n in back if n.state is NodeState.ACTIVE and n.hello.attempt == number}
    members = [member for member in job.members.world if member.node in active]
    for member, share in zip(members, _of_members(job, members), strict=True):
        job.services.background.once("share devices", _tell_alone(job, active[member.node], share))


async def _tell_alone(job: JobState, node: Node, share: int) -> None:
    await _tell_one(job, node, share)


def _answer(
    job: JobState, snapshot: JobSnapshot, request: MoveRequest, plan: _Plan, why_not: str, *, dry_run: bool
) -> ResizePreview:
    world = job.members.world
    ranks = sum(member.nproc for member in world)
    before = sum(_present(job))
    cost = preview(snapshot, request, why_not, why_no_dump=images.why_not(job), dry_run=dry_run)
    if plan.how != "nodes":
        cost |= {"resume_step": cost["step"], "lost_steps": 0, "price": restart_cost.price(0.0, ranks)}
    return {
        **cost,
        "devices": plan.devices,
        "from_devices": before,
        "nodes": plan.nodes,
        "how": plan.how,
        "step_ratio": round(before / plan.devices, 3),
        "late": [],
    }
