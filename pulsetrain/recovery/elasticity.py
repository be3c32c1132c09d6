"""Changes the number of nodes of a job: fewer where nodes are lost, more where they return.

A job that stands shrinks when no standby has come for a while. A job that runs grows at a saved step, as a
migration waits for one. What its ranks have saved must fit the other size, else the job keeps its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pulsetrain.protocol.messages import Held
from pulsetrain.recovery import faults, restart_cost, standby_care, survivors, world
from pulsetrain.recovery.agent_process import AgentProcess
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.resizing import Nodes, other_size, size_now
from pulsetrain.recovery.saves import (
    TORN_S,
    ask_for_saves,
    end_saves,
    has_checkpointer,
    is_writing,
    proven_without,
    restorable_without,
    saves_every_step,
)
from pulsetrain.recovery.snapshot import snapshot
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event, Phase
from pulsetrain.recovery.unequal_units import unequal_detail
from pulsetrain.recovery.world_sizes import resize

EARLIER = "what ranks have saved for so many nodes is of an earlier attempt"
NOT_REPLICATED = (
    "each rank may have saved a part of the state of its own, which fits this number of ranks only. "
    "Where all ranks save the same, say so with Checkpointer(..., replicated=True)"
)
SHARDS_GONE = (
    "some parts of the sharded state are in no memory that is left and not in storage, or not every rank has "
    "saved a part whose place in the whole is known"
)
NOTHING_SAVED = "it has no checkpoint, so that all its steps would be lost"
NOT_PROVEN = (
    "it is not known whether its script goes on from its checkpoint, so that all its steps may be lost"
)


class Loop(Protocol):
    """Takes the fault that stops the job."""

    def report(self, fault: Fault) -> None: ...


def size_to_begin(job: JobState, *, quiet_s: float) -> int:
    """The number of nodes with which a job that forms or waits goes on now. 0: it waits.

    `quiet_s` is the time since a node joined last.
    """
    resizing, members = job.resizing, job.members
    forming = job.phase is Phase.FORMING
    size = size_now(
        resizing,
        Nodes(
            available=members.available(forming=forming and _awaits_nodes(job, quiet_s)),
            checked=sum(n.set_apart or n.cordon == standby_care.NEW for n in members.reserves()),
        ),
        waited_s=quiet_s if forming else short_s(job),
        wait_s=_wait_s(job),
    )
    return 0 if size < resizing.size and _refused(job, size) else size


def _wait_s(job: JobState) -> float:
    """How long a job that stands waits for a standby. Processes that were kept make both stops cheap."""
    policy = job.services.policy
    if survivors.all_parked(job):
        return min(policy.shrink_wait_s, policy.survivor_shrink_wait_s)
    return policy.shrink_wait_s


def _awaits_nodes(job: JobState, quiet_s: float) -> bool:
    """Whether a job that forms waits for nodes that are no standbys."""
    before = job.members.before
    return before is None or not job.members.survived() or awaits_world(job, quiet_s)


def awaits_world(job: JobState, quiet_s: float) -> bool:
    """Whether nodes that an earlier hub launched may still report, which run the job or have its state.

    A new hub does not wait long for them, and not at all for evicted ones.
    """
    before = job.members.before
    away = before is not None and any(
        name not in job.members.nodes and not _was_evicted(job, name, agent)
        for name, agent in before.agents()
    )
    return away and quiet_s <= job.services.policy.adopt_timeout_s


def _was_evicted(job: JobState, node: str, agent: AgentProcess) -> bool:
    """Whether an earlier hub has evicted this agent."""
    past = job.remembered.get(node)
    return past is not None and bool(past.evicted) and past.agent.is_same(agent)


def short_s(job: JobState) -> float:
    """How long a job that stands has been short of nodes."""
    if job.recovery is None:
        return job.in_phase_s()
    return job.services.clock.monotonic_s() - job.recovery.began_s


def _refused(job: JobState, size: int) -> bool:
    """Whether a job cannot have this size. The first time it is an event."""
    why_not = why_not_size(job, size)
    if why_not and why_not != job.resizing.why_not:
        job.write("resize_refused", {"to": size, "why_not": why_not})
    job.resizing.why_not = why_not
    return bool(why_not)


def why_not_size(job: JobState, size: int) -> str:
    """Why what ranks have saved does not fit a world of so many nodes, "" where it does.

    A script without a `Checkpointer` restores by itself, as under torchrun. A new hub that has seen no world
    looks at what its nodes hold all the same.
    """
    members, held = job.members, job.members.held()
    if size in (0, len(members.world)) or not any(held.values()):
        return ""
    standbys = [node.hello for node in members.standbys()]
    if members.world:
        resized = resize(members.world, size, members.healthy(), standbys, job.resizing.sizes)
    else:
        resized = world.form_world(standbys, size)
    plan = members.plan_restore(resized, job.restarts.unrestorable)
    if plan.step < 0:
        return _why_not_shards(held)
    if plan.order[0] < members.plan_restore(members.world, job.restarts.unrestorable).order[0]:
        return EARLIER
    refused = plan.shards.step >= 0 or size in job.resizing.failed
    return job.resizing.refusal(size) if refused else ""


def _why_not_shards(held: Mapping[str, Sequence[Held]]) -> str:
    """Why what is held cannot be put together."""
    sharded = any(item.shard for items in held.values() for item in items)
    return SHARDS_GONE if sharded else NOT_REPLICATED


def tell_unfit(job: JobState) -> None:
    """A launch begins with the first step. Say so where checkpoints are there that do not fit its ranks."""
    ranks = job.members.world_size
    saved_by = {item.world for held in job.members.held().values() for item in held if item.world > 0}
    if saved_by and ranks not in saved_by:
        why = f"checkpoints of {', '.join(map(str, sorted(saved_by)))} ranks do not fit {ranks}"
        job.write("checkpoint_unfit", {"why_not": f"{why}: {NOT_REPLICATED}"})


def change_size(job: JobState, size: int) -> None:
    """The next launch has another size. If its state cannot be put together for that, it goes back."""
    job.resizing.changed(size, job.services.clock.monotonic_s())
    job.resizing.came_from = job.members.world


def take_size(job: JobState) -> None:
    """A launch follows: use as many nodes as are there, if that fits what was saved."""
    resizing, members = job.resizing, job.members
    before = resizing.size
    size = resizing.fit(members.available(forming=not members.world))
    if not size or size == before or (members.world and _refused(job, size)):
        return
    change_size(job, size)
    job.restarts.forget_idle()  # nodes came or went: that is why attempts were short
    if members.world:
        _tell(job, before, size)


def note_refusal(job: JobState, reasons: Sequence[str]) -> None:
    """Agents could not put the state together for this world. The job goes back to the size that it had."""
    if _tell_refusal(job, reasons):
        _go_back(job)


def note_late_refusal(job: JobState, reason: str) -> None:
    """A rank of this world could not take its part of the state. The next launch has the size from before.

    Ranks of this world still run. So its nodes stay as they are until they were stopped.
    """
    if not job.resizing.goes_back and _tell_refusal(job, [reason] if reason else []):
        job.resizing.goes_back = True


def may_be_at_fault(job: JobState, fault: Fault) -> bool:
    """Whether ranks fail at a size at which they have done no step, where they have trained at another."""
    return job.resizing.is_untried and fault.event in (Event.RANK_FAILED, Event.HANG)


def is_at_fault(job: JobState, fault: Fault) -> bool:
    """Whether it is the new size at which ranks fail, so that a job that would be given up goes back.

    Arguments may not divide, or memory may not suffice. At the size from before the job has trained.
    """
    resizing = job.resizing
    if not may_be_at_fault(job, fault):
        return False
    if not resizing.goes_back:
        resizing.failed.add(resizing.size)
        resizing.goes_back = _tell_refusal(job, [f"its ranks fail on {resizing.size} nodes: {fault.reason}"])
        job.restarts.forget_idle()
    return True


def after_stop(job: JobState) -> None:
    """All ranks were stopped. A world that could not be used is given up for the one before it."""
    if job.resizing.goes_back:
        _go_back(job)


def _tell_refusal(job: JobState, reasons: Sequence[str]) -> bool:
    if reasons:
        job.resizing.refused[job.resizing.size] = job.resizing.why_not = reasons[0]
        job.write("resize_refused", {"to": job.resizing.size, "why_not": reasons[0]})
    return bool(reasons)


def _go_back(job: JobState) -> None:
    """The world becomes the one from before its size changed last.

    Of that a pool may have given machines to others. The job waits without them until the pool decides.
    """
    resizing, members = job.resizing, job.members
    resizing.goes_back = False
    if resizing.came_from:
        for node in members.active():
            node.state = NodeState.STANDBY
        members.world, resizing.size = resizing.came_from, len(resizing.came_from)
        names = {member.node for member in members.world}
        for node in members.reserves():
            back = node.name in names and (members.allowed is None or node.name in members.allowed)
            node.state = NodeState.ACTIVE if back else node.state


def _tell(job: JobState, before: int, size: int) -> None:
    """Write down that the world changes, and what it costs."""
    members = job.members
    nproc = members.world[0].nproc
    standbys = [node.hello for node in members.standbys()]
    after = resize(members.world, size, members.healthy(), standbys, job.resizing.sizes)
    names, old = [m.node for m in after], [m.node for m in members.world]
    stood_s = short_s(job)
    detail = {
        "from": before,
        "to": size,
        "from_ranks": before * nproc,
        "to_ranks": size * nproc,
        "joined": [name for name in names if name not in old],
        "left": [name for name in old if name not in names],
        "stood_s": round(stood_s, 3),
        "stood_gpu_s": round(stood_s * min(before, size) * nproc, 1),
        "price": restart_cost.of_restart(snapshot(job)),
        **(unequal_detail(job.resizing.sizes, size) or {}),
    }
    job.write("shrink" if size < before else "grow", detail)


def look(job: JobState, loop: Loop) -> None:
    """At a saved step let a running job grow where nodes are there, or shrink where fewer are wanted."""
    resizing = job.resizing
    members = job.members
    size = 0 if resizing.is_final else other_size(resizing, len(members.active()) + len(members.standbys()))
    if not size or not _steady(job):
        if not members.set_apart():
            _forget(job)
        return
    if resizing.acted_in == job.attempt.number or _refused(job, size):
        return
    if _may_change(job, size):
        resizing.acted_in = job.attempt.number
        now_ns = job.now_ns()
        if size < resizing.size:
            loop.report(faults.resized(f"{size} nodes are wanted", job.attempt.number, now_ns))
            return
        reason = f"{resizing.size} of {size} nodes were in use"
        loop.report(faults.grown(reason, job.attempt.number, now_ns))


def _steady(job: JobState) -> bool:
    """Whether the job trains, and nothing else is about to stop it."""
    policy = job.services.policy
    stops = (job.move, job.new_share, job.recovery, job.hangs.pending)
    busy = any(stop is not None for stop in stops)
    if job.phase is not Phase.RUNNING or busy or policy.observe_only or not job.attempt.first_step_done:
        return False
    return job.in_phase_s() >= job.resizing.grow_after_s(policy.grow_after_s)


def _forget(job: JobState) -> None:
    """Nothing is left to grow for. Ranks that were asked to save are asked no more."""
    if job.resizing.asked_in == job.attempt.number and job.phase is Phase.RUNNING and job.move is None:
        end_saves(job)
    job.resizing.asked_in = None


def _may_change(job: JobState, size: int) -> bool:
    """Whether the step is saved that was waited for. The first call asks for it.

    A job that grows never does steps again for that. To shrink, it waits for some time.
    """
    resizing, now_s = job.resizing, job.services.clock.monotonic_s()
    if resizing.asked_in != job.attempt.number:
        resizing.asked_in, resizing.asked_s = job.attempt.number, now_s
        resizing.newer_than = job.last_step
        if has_checkpointer(job) and not saves_every_step(job):
            resizing.newer_than = ask_for_saves(job)
    grows = size > resizing.size
    saved = proven_without(job, "") if grows else restorable_without(job, "")
    if saved < 0:
        resizing.why_not = NOT_PROVEN if restorable_without(job, "") >= 0 else NOTHING_SAVED
        return False
    resizing.why_not = ""
    waited_s, patience_s = now_s - resizing.asked_s, job.services.policy.checkpoint_patience_s
    if is_writing(job) and waited_s < patience_s + TORN_S:
        return False
    return saved >= resizing.newer_than or (waited_s >= patience_s and not grows)
