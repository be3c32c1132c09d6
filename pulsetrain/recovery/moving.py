"""Moves a job on request: stops it at a saved step, lets it go on, or takes it off a node.

Singularity (arXiv 2202.07848) dumps whole processes. Here a job goes on from a checkpoint. Its ranks are
asked to save every step from one on that none has reached yet, so that little is done again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery import faults, hold, images, kept_moves, late_ranks, resume_nodes, unsaved_work
from pulsetrain.recovery.move_request import ASKED, LONGEST_S, Hold, Image, Move, MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.record import Fault, Recovery
from pulsetrain.recovery.saves import (
    TORN_S,
    ask_for_saves,
    end_saves,
    has_checkpointer,
    is_saving,
    is_writing,
    is_written,
    restorable_without,
    saves_every_step,
)
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import PREEMPTED, TERMINAL, Event, Phase

POOL = faults.POOL
SHARE = "waits for its share of the pool"


class Loop(Protocol):
    """Takes what follows from a move."""

    def post(self, event: Event) -> None: ...
    def report(self, fault: Fault) -> None: ...


def refusal(job: JobState, request: MoveRequest) -> str:
    """Why the job cannot be moved like that now, "" where it can."""
    if request.what not in ASKED:
        return f"what = {request.what!r}: allowed: {', '.join(ASKED)}"
    if job.phase in TERMINAL:
        return f"job {job.name!r} is over"
    if request.what == "resume":
        if job.phase is Phase.PREEMPTED and job.move is None:
            return f"job {job.name!r} is about to go on already"
        waits = job.move is not None and not _updates(job) and job.phase is not Phase.PREEMPTING
        if not waits:
            return f"job {job.name!r} is {job.phase}, not pre-empted"
        if job.phase is Phase.FORMING and job.move is not None and job.move.image is not None:
            return f"job {job.name!r} is just being taken over by this hub; try again in a moment"
        if late_ranks.are_awaited(job):
            return f"the processes of job {job.name!r} run or are being restored; try again in a moment"
        return resume_nodes.refusal(job, request)
    if job.phase in PREEMPTED:
        return "" if _stays_stopped(job, request) else f"job {job.name!r} is {job.phase} already"
    if job.move is not None and not _updates(job):
        return f"job {job.name!r} is about to be moved already ({job.move.request.what})"
    if request.what == "migrate":
        return _why_it_stays(job, request.node)
    done = unsaved_work.done(job)
    if request.lose_progress or not done or job.can_resume():
        return ""
    no_dump = images.why_not(job)
    if not no_dump:
        return ""
    lost = f"{done} would be lost (allow it: --lose-progress)"
    return f"job {job.name!r} has no checkpoint, and its processes are not dumped ({no_dump}): {lost}"


def _stays_stopped(job: JobState, request: MoveRequest) -> bool:
    """Whether a person wants that a job which the pool has stopped does not go on by itself."""
    by_pool = job.move is not None and job.move.request.actor == POOL
    return job.phase is Phase.PREEMPTED and by_pool and request.what == "preempt" and request.actor != POOL


def _why_it_stays(job: JobState, name: str) -> str:
    node = job.members.nodes.get(name)
    if node is None or node.state is not NodeState.ACTIVE:
        here = ", ".join(sorted(n.name for n in job.members.active())) or "none"
        return f"node {name!r} runs no ranks of job {job.name!r}; these do: {here}"
    if job.services.pooled and not job.members.standbys():
        return f"the pool chooses the nodes of job {job.name!r}: evict the node, and it gives the job another"
    if not job.members.standbys():
        return f"job {job.name!r} has no standby to take the place of node {name!r}"
    return ""


def begin(job: JobState, request: MoveRequest, loop: Loop) -> None:
    """Do what is asked for, or begin with it. Raises `UsageError` where it cannot be done now."""
    why_not = refusal(job, request)
    if why_not:
        raise UsageError(why_not)
    if request.what == "resume":
        _resume(job, request, loop)
        return
    if job.move is not None and _stays_stopped(job, request):
        _hand_over(job, job.move, request)
        return
    give_way(job)
    job.move = _move(job, request)
    if job.recovery is not None:
        job.move.image = job.recovery.image  # of an earlier pre-emption, from which it has not gone on yet
    detail = {"reason": request.reason, "step": job.last_step, "wait_s": request.wait_s}
    job.write(request.what, detail, node=request.node, actor=request.actor)
    if request.what == "preempt":
        kept_moves.keep(job, job.move, stopped_ns=0)
    look(job, loop)


def _move(job: JobState, request: MoveRequest) -> Move:
    now_s = job.services.clock.monotonic_s()
    return Move(request=request, asked_ns=job.now_ns(), asked_s=now_s, newer_than=job.last_step)


def begin_update(job: JobState, reason: str, actor: str, loop: Loop, *, saved_step: int = -1) -> None:
    """Stop the job at a saved step so that an update of its program comes into force.

    `saved_step` is one that the script has just saved by itself, -1 where a newer one is waited for.
    """
    wait_s = min(job.services.policy.checkpoint_patience_s, LONGEST_S)
    job.move = _move(job, MoveRequest(what="update", reason=reason, actor=actor, wait_s=wait_s))
    if saved_step >= 0:
        job.move.newer_than = saved_step
    look(job, loop)


def _updates(job: JobState) -> bool:
    """Whether the job is about to stop for an update. Anything else that a person wants goes first."""
    return job.move is not None and job.move.request.what == "update"


def take_over(job: JobState) -> None:
    """A new hub has found the ranks as an earlier one has left them, perhaps in the middle of a move.

    Of a migration nobody knows any more. So no rank may stand for it, or save every step from now on. Where
    it was about to restore ranks, they run now. A pre-emption whose ranks run after all begins once more.
    """
    if job.move is not None and job.move.restoring:
        job.move = None
        job.services.memory.preemption(job.name, None)
    if job.move is not None and late_ranks.are_awaited(job):
        job.move = _move(job, job.move.request)
        kept_moves.keep(job, job.move, stopped_ns=0)
    if job.move is None:
        hold.release_any(job)
        end_saves(job)


def give_way(job: JobState) -> None:
    """Do not stop the job for an update any more, because it was launched with it or should do otherwise."""
    if job.move is not None and _updates(job):
        hold.release(job, job.move.hold)
        job.move = None
        if job.phase is Phase.RUNNING:
            end_saves(job)


def look(job: JobState, loop: Loop) -> None:
    """Carry out a move once its checkpoint is there, or was waited for long enough."""
    move = job.move
    if move is None:
        return
    node = job.members.nodes.get(move.request.node)
    if move.request.node and (node is None or node.state is not NodeState.ACTIVE):
        hold.release(job, move.hold)
        job.move = None
        end_saves(job)
    elif move.request.what == "preempt" and _stands(job):
        loop.post(Event.PREEMPT)
    elif move.request.what == "preempt" and _launches(job) and move.acted_in != job.attempt.number:
        move.acted_in, move.saved_ns = job.attempt.number, job.now_ns()
        loop.post(Event.PREEMPT)
    elif job.phase is Phase.RUNNING and move.acted_in != job.attempt.number:
        _look_at_running(job, move, loop)


def _stands(job: JobState) -> bool:
    """Whether no rank runs. A job whose nodes report to a new hub is taken over first."""
    running = any(n.usable and n.busy for n in job.members.nodes.values())
    forms = job.phase is Phase.FORMING and not running and not _awaits_nodes(job)
    return job.phase is Phase.WAITING or forms


def _launches(job: JobState) -> bool:
    """Whether nodes still load what the ranks begin with. That may take hours, and nothing is lost by a stop.

    Not where ranks are restored from their image, which would be gone, nor where one has done a step.
    """
    attempt = job.attempt
    image = attempt.image is not None or (job.recovery is not None and job.recovery.image is not None)
    return job.phase is Phase.STARTING and not (image or attempt.launched or attempt.stepping_ns)


def _awaits_nodes(job: JobState) -> bool:
    """Whether nodes that ran the job may still report to a new hub. Their ranks may run."""
    before = job.members.before
    away = before is not None and any(name not in job.members.nodes for name in before.nodes)
    return away and job.in_phase_s() < job.services.policy.adopt_timeout_s


def _dumps(job: JobState, move: Move, loop: Loop) -> bool:
    """Dump the processes of the job where that can be done. Whether nothing else is to be done meanwhile."""
    image = move.image
    if image is None or image.attempt != job.attempt.number:
        move.image = None  # one of an earlier attempt is used up
        if move.request.what != "preempt" or not images.possible(job):
            return False
        move.image, move.hold = images.take(job, move.request.wait_s, lambda: look(job, loop))
    elif image.state == "missed":
        return _gives_up(job, move, image)
    elif image.state == "taken":
        move.acted_in, move.saved_ns = job.attempt.number, job.now_ns()
        if move.hold is not None:
            held_ns = int((job.services.clock.monotonic_s() - move.hold.began_s) * 1e9)
            move.held_ns = held_ns - image.dump_ns
        loop.post(Event.PREEMPT)
    return True


def _gives_up(job: JobState, move: Move, image: Image) -> bool:
    """The job goes on from a saved step. Where there is none, it is not pre-empted. Whether that is so."""
    if move.hold is not None and move.hold.state in ("missed", "over"):
        move.hold = None
    if move.request.lose_progress or not unsaved_work.done(job) or job.can_resume():
        return False
    _drop(job, move, image.why_not)
    return True


def _look_at_running(job: JobState, move: Move, loop: Loop) -> None:
    if unsaved_work.done(job):
        move.newer_than = max(move.newer_than, 0)  # it was asked for before the first step
    if _dumps(job, move, loop):
        return
    held = _present_hold(job, move)
    if held is not None and held.stood_s:
        _look_at_lapsed(job, move, held)
    why_not = _why_it_stays(job, move.request.node) if move.request.node else ""
    if why_not and job.members.set_apart():
        return
    if why_not:
        _drop(job, move, why_not)
    elif _may_act(job, move) and _stands_saved(job, move, loop):
        why_not = _why_begins_anew(job, move.request)
        if why_not:
            _drop(job, move, why_not)
            return
        move.acted_in, move.saved_ns = job.attempt.number, job.now_ns()
        if move.hold is not None:
            move.held_ns = int((job.services.clock.monotonic_s() - move.hold.began_s) * 1e9)
        _act(job, move.request, loop)
    elif _present_hold(job, move) is None and move.asked_in != job.attempt.number:
        move.asked_in = job.attempt.number
        step = ask_for_saves(job)
        if has_checkpointer(job):
            move.newer_than = step
        elif move.request.wait_s > 0:
            step, limit_s = move.newer_than, move.request.wait_s
            move.hold = hold.begin_after_own_save(job, step, limit_s, lambda: look(job, loop))


def _drop(job: JobState, move: Move, why_not: str) -> None:
    """The job trains on, and says why."""
    request = move.request
    job.write(f"{request.what}_dropped", {"why_not": why_not}, node=request.node, actor=request.actor)
    hold.release(job, move.hold)
    if request.what == "preempt":
        job.services.memory.preemption(job.name, None)
    job.move = None
    end_saves(job)


def _why_begins_anew(job: JobState, request: MoveRequest) -> str:
    """Why all steps would be lost, "" where they are not. Looked at when the job is about to be stopped.

    Of a migration nobody can want that: who does evicts the node.
    """
    if request.lose_progress:
        return ""
    if request.what in ("preempt", "update"):
        lost = unsaved_work.lost_now(job)
        told = f"{lost} would be lost"
        told += " (allow it: --lose-progress)" if request.what == "preempt" else ""
        return f"job {job.name!r} has no checkpoint: {told}" if lost else ""
    done = unsaved_work.done(job)
    if not done or (job.can_resume() and restorable_without(job, request.node) >= 0):
        return ""
    lost = f"{done} would be lost (evict the node to allow it)"
    return f"job {job.name!r} has no checkpoint that holds without node {request.node!r}: {lost}"


def _may_act(job: JobState, move: Move) -> bool:
    """Whether the ranks may be ended, or brought to a stand for it."""
    now_s, held = job.services.clock.monotonic_s(), _present_hold(job, move)
    waits_s = move.request.wait_s
    if waits_s and now_s - move.asked_s < waits_s + TORN_S and _would_tear(job, held):
        return False
    if (held is not None and held.saved_step < 0) or now_s - move.asked_s >= waits_s:
        return True
    if restorable_without(job, move.request.node) < move.newer_than:
        return False
    if has_checkpointer(job):
        return move.asked_in == job.attempt.number or saves_every_step(job)
    move.saved_s = move.saved_s or now_s
    if held is not None and held.state != "stands":
        return now_s - move.saved_s > hold.OWN_GRACE_S and not is_writing(job)
    return held is not None


def _would_tear(job: JobState, held: Hold | None) -> bool:
    """Whether ranks may be writing. Those that stand behind their part wait for the others."""
    if held is None or held.state != "stands":
        return is_saving(job)
    tears = held.saved_step >= 0 and not is_written(job, held)
    if tears:
        hold.keep(job, held)
    return tears


def _look_at_lapsed(job: JobState, move: Move, held: Hold) -> None:
    """Ask the ranks once more where they have run on, because nobody has kept their hold.

    It is not kept where nothing is saved behind it so far. A job's first checkpoint is not, until all ranks
    have gone on. Where it lapses else, this hub stood still, and what is saved is old by now.
    """
    saved, lapsed = restorable_without(job, move.request.node), hold.has_lapsed(job, held)
    lacks = held.saved_step >= 0 and saved < move.newer_than
    if lapsed and lacks:
        held.state = "missed"
    if lacks or not (lapsed or held.state == "missed"):
        return
    if lapsed:
        move.asked_s = job.services.clock.monotonic_s()
        move.newer_than = max(job.last_step, saved + 1)
    held.state, move.hold, move.asked_in, move.saved_s = "over", None, None, 0.0


def _present_hold(job: JobState, move: Move) -> Hold | None:
    """The hold of the ranks that run now."""
    return move.hold if move.hold is not None and move.hold.attempt == job.attempt.number else None


def _stands_saved(job: JobState, move: Move, loop: Loop) -> bool:
    """Whether all ranks stand at a saved step. They are brought there where a `Checkpointer` saves."""
    held = _present_hold(job, move)
    if held is None or held.saved_step >= 0:
        waited = job.services.clock.monotonic_s() - move.asked_s >= move.request.wait_s
        if waited or not has_checkpointer(job):
            return True
        if held is not None:
            held.state = "over"  # two holds would undo each other
        held = move.hold = hold.begin(job, lambda: look(job, loop))
    return hold.settled(job, held, restorable_without(job, move.request.node))


def _act(job: JobState, request: MoveRequest, loop: Loop) -> None:
    if request.what == "preempt":
        loop.post(Event.PREEMPT)
        return
    number, now_ns = job.attempt.number, job.now_ns()
    if request.what == "update":
        loop.report(faults.updated(request.reason, request.actor, number, now_ns))
        return
    loop.report(faults.migrated(request.node, request.reason, request.actor, number, now_ns))


def stopping(job: JobState) -> str:
    """The ranks of a pre-empted job are about to end. Returns why."""
    job.hangs.forget()
    move = job.move
    if move is None:
        return "pre-empted"
    move.from_step = max(move.from_step, job.last_step)
    return f"pre-empted by {move.request.actor}: {move.request.reason}"


async def rest(job: JobState) -> None:
    """The job has stopped. It stays so, also if the hub is started anew."""
    move, now_ns, step = job.move, job.now_ns(), restorable_without(job, "")
    if job.recovery is not None and move is not None:
        move.from_step = max(move.from_step, job.recovery.from_step)
    job.recovery = None
    if move is None:
        return
    request, stopping_ns = move.request, move.saved_ns or now_ns
    image = move.image if move.image is not None and move.image.state == "taken" else None
    late_ranks.rule_out(job)
    dump_ns = image.dump_ns if image is not None and move.hold is not None else 0
    step = move.from_step if image is not None else step
    began_ns = stopping_ns - move.held_ns - dump_ns
    detail = {
        "reason": request.reason,
        "step": move.from_step,
        "resume_step": step,
        "lost_steps": max(move.from_step - step, 0),
        "stages_ns": {
            "save": began_ns - move.asked_ns,
            "hold": move.held_ns,
            "dump": dump_ns,
            "stop": now_ns - stopping_ns,
        },
        "hold": move.hold.row() if move.hold else None,
        "image": move.image.row() if move.image else None,
        "total_ns": now_ns - move.asked_ns,
        "not_stopped": move.not_stopped,
    }
    job.write("preempted", detail, actor=request.actor)
    kept_moves.keep(job, move, stopped_ns=now_ns)
    await job.services.memory.stored()


def waits_for_pool(job: JobState, request: MoveRequest) -> bool:
    """Whether a person resumes a job that goes on only once the pool has devices for it."""
    by_person = job.services.pooled and request.actor != POOL
    stopped = job.phase is Phase.PREEMPTED and job.move is not None
    return request.what == "resume" and by_person and stopped


def _hand_over(job: JobState, move: Move, request: MoveRequest) -> None:
    """A stopped job stays stopped, in another's name: who has stopped it says when it goes on."""
    job.write(request.what, {"reason": request.reason, "state": str(job.phase)}, actor=request.actor)
    pools = replace(move.request, actor=POOL, reason=SHARE, lose_progress=request.lose_progress)
    move.request = request if request.what == "preempt" else pools
    kept_moves.keep(job, move, stopped_ns=job.now_ns())


def _has_stopped(move: Move | None) -> bool:
    """Whether the pool has stopped the job by itself. Of one that a person handed over it only says when."""
    return move is not None and move.request.actor == POOL and move.request.reason != SHARE


def _resume(job: JobState, request: MoveRequest, loop: Loop) -> None:
    """Let a pre-empted job go on, or take back what was not carried out yet.

    In a pool a person's job goes on once the pool has devices for it.
    """
    if job.move is not None and waits_for_pool(job, request):
        _hand_over(job, job.move, request)
        return
    move, job.move = job.move, None
    told = {"reason": request.reason, "state": str(job.phase), "nodes": list(request.nodes)}
    job.write("resume", told, actor=request.actor)
    if job.phase is not Phase.PREEMPTED:
        kept_moves.take_back(job, move)
        hold.release(job, move.hold if move else None)
        end_saves(job)
        return
    image = resume_nodes.waiting_image(job, move)
    chosen = request.nodes or request.actor == POOL
    if image is None and not chosen:  # these are kept until the launch: a new hub asks once more
        job.services.memory.preemption(job.name, None)
    resume_nodes.choose(job, request.nodes, image)
    fault = faults.resumed(request.reason, request.actor, job.attempt.number, job.now_ns())
    job.recovery = Recovery(
        fault=fault,
        from_step=move.from_step if move else -1,
        from_nodes=resume_nodes.world_before(job),
        from_agents=resume_nodes.agents_before(job),
        by_pool=request.actor == POOL and _has_stopped(move),
        began_s=job.services.clock.monotonic_s(),
    )
    job.recovery.image, job.recovery.lose_progress = image, request.lose_progress
    loop.post(Event.RESUME)
