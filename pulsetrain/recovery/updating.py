"""Updates the program of a job lazily: with its next restart, or at a saved step when it has waited too long.

ByteRobust (arXiv 2509.16293, section 5) merges changes that are not urgent into the next failure, and
forces them after a day. An update is tried first. Where attempts fail with it before they have done some
steps, what was launched before comes back.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery import moving, unsaved_work
from pulsetrain.recovery.back_off import COUNTED
from pulsetrain.recovery.record import Fault, Recovery
from pulsetrain.recovery.restarts import Restarts
from pulsetrain.recovery.saves import has_checkpointer, proven_without, restorable_without
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import TERMINAL, Event, Phase
from pulsetrain.recovery.update_request import UpdateRequest
from pulsetrain.recovery.updates import PendingUpdate, Trial, Updates, shown

log = structlog.get_logger()

USAGE_EXIT = 2
MOST_LAUNCHES = 10
"""of an update that is never good. Lost nodes do not count as its failures, and must not go on for ever."""
NO_CHECKPOINT = "the job has no checkpoint to go on from"
NOT_PROVEN = "no restart has shown yet that the script goes on from its own checkpoint"
NEXT_OWN = "the script saves by itself, and its next checkpoint is waited for"


class Loop(Protocol):
    """Takes what follows from an update."""

    def post(self, event: Event) -> None: ...
    def report(self, fault: Fault) -> None: ...


def refusal(job: JobState, request: UpdateRequest) -> str:
    """Why this cannot be done now, "" where it can."""
    now = job.updates
    if job.phase in TERMINAL:
        return f"job {job.name!r} is over"
    if request.what == "cancel":
        return "" if now.pending is not None else f"no update of job {job.name!r} waits"
    if now.trial is not None:
        number, steps = now.trial.update.program.number, job.services.policy.update_steps
        return f"update {number} of job {job.name!r} is being tried: wait until it has done {steps} steps"
    if request.what == "revert" and now.pending is not None:
        return f"update {now.pending.program.number} of job {job.name!r} waits: take it back with --cancel"
    if request.what == "revert" and now.before is None:
        return f"job {job.name!r} was not updated: there is nothing to go back to"
    done = unsaved_work.done(job)
    if request.within_s == 0 and done and not job.can_resume():
        return f"job {job.name!r} has no checkpoint: {done} would be lost. Without --now it waits"
    return ""


def begin(job: JobState, request: UpdateRequest, loop: Loop) -> None:
    """Do what is asked for, or note it. Raises `UsageError` where it cannot be done now."""
    why_not = refusal(job, request)
    if why_not:
        raise UsageError(why_not)
    if request.what == "cancel":
        _cancel(job, request)
        return
    merged = job.updates.pending
    pending = job.updates.ask(request, job.now_ns(), job.services.policy.update_within_s)
    detail = {
        **shown(pending.program),
        "what": request.what,
        "reason": request.reason,
        "until_ns": pending.until_ns,
        "merged_with": merged.program.number if merged is not None else None,
        "step": job.last_step,
    }
    job.write("update_requested", detail, actor=request.actor)
    job.keep_updates()
    look(job, loop)


def _cancel(job: JobState, request: UpdateRequest) -> None:
    pending = job.updates.pending
    if pending is None:
        return
    moving.give_way(job)
    job.updates.ended("cancelled", pending, request.reason, job.now_ns())
    detail = {"number": pending.program.number, "reason": request.reason}
    job.write("update_cancelled", detail, actor=request.actor)
    job.keep_updates()


def why_waits(job: JobState) -> str:
    """Why an update that is due does not stop the job, "" where it is not due or does."""
    pending = job.updates.pending
    if pending is None or job.now_ns() < pending.until_ns or job.phase is not Phase.RUNNING or job.move:
        return ""
    if not _goes_on(job, pending):
        return NOT_PROVEN if job.can_resume() else NO_CHECKPOINT
    return "" if pending.now or has_checkpointer(job) else NEXT_OWN


def may_lose(job: JobState, request: UpdateRequest) -> tuple[int, str]:
    """How many steps a stop for the update may cost, and where that is. 0 and "" where it costs none.

    Also why a job is not stopped where nobody wants that now.
    """
    done, now = job.last_step + 1, request.within_s == 0
    if request.what == "cancel" or has_checkpointer(job) or not done or not job.can_resume():
        return 0, ""
    if proven_without(job, "") < 0:
        if now:
            return done, f"{NOT_PROVEN}: all {done} steps may be lost"
        return 0, f"{NOT_PROVEN}: until then the job is not stopped for it"
    if not now:
        return 0, ""
    lost = max(job.last_step - restorable_without(job, ""), 0)
    wait_s = job.services.policy.checkpoint_patience_s
    return (
        lost,
        f"{lost} steps are done again if the script saves nothing within {wait_s:g} s" if lost else "",
    )


def look(job: JobState, loop: Loop) -> None:
    """See whether an update is good, and stop the job for one that has waited long enough."""
    trial, pending = job.updates.trial, job.updates.pending
    if trial is not None and job.phase is Phase.RUNNING and _is_good(job, trial, job.last_step):
        _confirm(job, trial)
    job.updates.why_waits = why_waits(job)
    if pending is None or job.now_ns() < pending.until_ns:
        return
    _note_own_save(job)
    if not _may_stop(job, pending):
        return
    if pending.now or has_checkpointer(job):
        moving.begin_update(job, pending.reason, pending.actor, loop)
    elif job.updates.own_saved_at is not None:
        job.updates.own_saved_at = None
        own_step = job.own_checkpoints.resumable_step()
        moving.begin_update(job, pending.reason, pending.actor, loop, saved_step=own_step)


def _note_own_save(job: JobState) -> None:
    """Note a new checkpoint of the script's own. It stays new until a rank completes a further step.

    Something else may stand in the way of the update in the moment in which it is seen.
    """
    now, own_step = job.updates, job.own_checkpoints.resumable_step()
    if now.own_step is not None and now.own_step != own_step:
        now.own_saved_at = job.last_step
    elif now.own_saved_at != job.last_step:
        now.own_saved_at = None
    now.own_step = own_step


def _may_stop(job: JobState, pending: PendingUpdate) -> bool:
    """Whether the job trains, nothing else is about to stop it, and it has something to go on from.

    What somebody wants now does not wait until the pool's change to other nodes has a newer step.
    """
    share = job.new_share
    if pending.now and share is not None and share.only_waits:
        share = None
    stops = (job.move, share, job.recovery, job.hangs.pending)
    trains = job.phase is Phase.RUNNING and job.attempt.first_step_done
    return trains and _goes_on(job, pending) and all(stop is None for stop in stops)


def _goes_on(job: JobState, pending: PendingUpdate) -> bool:
    """Whether the job goes on from a saved step. Where nobody wants it now, that must be certain."""
    return (restorable_without(job, "") if pending.now else proven_without(job, "")) >= 0


def take(job: JobState, base_step: int) -> None:
    """An attempt is launched from `base_step`: with the update that waits, if there is one."""
    now = job.updates
    pending = now.pending
    if pending is not None and now.trial is None:
        kept = job.restarts.kept(job.services.clock.monotonic_s(), job.now_ns())
        now.trial, now.pending = Trial(update=pending, restarts=kept), None
        moving.give_way(job)
        _tell_applied(job, pending)
    if now.trial is None:
        return
    if now.trial.launches >= MOST_LAUNCHES:
        _roll_back(job, now.trial, f"{MOST_LAUNCHES} attempts did not complete enough steps")
    else:
        now.trial.launches += 1
        now.trial.base_step = base_step
    job.keep_updates()


def _tell_applied(job: JobState, update: PendingUpdate) -> None:
    fault = job.recovery.fault if job.recovery is not None else None
    detail = {
        **shown(update.program),
        "reason": update.reason,
        "merged_into": fault.cause if fault is not None and fault.event is not Event.UPDATE else "",
        "waited_s": round((job.now_ns() - update.asked_ns) / 1e9, 3),
    }
    job.write("update_applied", detail, actor=update.actor)


def _is_good(job: JobState, trial: Trial, step: int) -> bool:
    """Whether the attempt that ended or runs has done enough with the update."""
    policy, attempt = job.services.policy, job.attempt
    if not attempt.first_step_done:
        return False
    ran_s = (job.now_ns() - attempt.started_ns) / 1e9
    return step - trial.base_step >= policy.update_steps or ran_s >= policy.restart_progress_s


def _confirm(job: JobState, trial: Trial) -> None:
    job.updates.ended("in_force", trial.update, "", job.now_ns())
    detail = {**shown(trial.update.program), "attempts": trial.launches, "step": job.last_step}
    job.write("update_confirmed", detail, actor=trial.update.actor)
    job.keep_updates()


def after_stop(job: JobState) -> None:
    """All ranks have stopped. Judge an update that is tried, before the fault counts against the job."""
    trial, recovery, attempt = job.updates.trial, job.recovery, job.attempt.number
    if trial is None or recovery is None or recovery.fault.event not in COUNTED or trial.judged == attempt:
        return
    trial.judged = attempt
    if _is_good(job, trial, recovery.from_step):
        _confirm(job, trial)
        return
    trial.failures.append(recovery.fault.reason)
    if _is_hopeless(job, trial, recovery):
        _roll_back(job, trial, trial.failures[0])
    job.keep_updates()


def _is_hopeless(job: JobState, trial: Trial, recovery: Recovery) -> bool:
    """Whether another attempt with the update would be pointless, or the job's last one."""
    policy, restarts = job.services.policy, job.restarts
    if job.attempt.program_refused or recovery.fault.exit_code == USAGE_EXIT:
        return True
    used_up = restarts.used >= job.max_restarts or restarts.idle >= policy.no_progress_attempts
    return used_up or len(trial.failures) >= policy.update_attempts


def _roll_back(job: JobState, trial: Trial, why: str) -> None:
    """What was launched before comes back, and the failures of the update do not count against the job."""
    now_s, now_ns = job.services.clock.monotonic_s(), job.now_ns()
    job.updates.ended("rolled_back", trial.update, why, now_ns)
    unrestorable = job.restarts.unrestorable
    job.restarts = Restarts.recalled(trial.restarts, now_s, now_ns)
    job.restarts.unrestorable |= unrestorable
    if job.recovery is not None:
        job.recovery.rolled_back = job.recovery.restart_counted = job.recovery.node_counted = True
    detail = {
        **shown(trial.update.program),
        "why": why,
        "failed_attempts": list(trial.failures),
        "back_to": shown(job.updates.in_force),
    }
    job.write("update_rolled_back", detail)


def recall(job: JobState) -> None:
    """Take over what an earlier hub knew."""
    memory = job.services.memory.recall(job.name).update
    if memory is None:
        return
    try:
        job.updates = Updates.of_memory(memory)
    except (
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # of another version: begin all the same
        log.warning("updates_forgotten", job=job.name, error=type(error).__name__)


def forget_another_run(job: JobState) -> None:
    """No agent of the earlier hub's world is here: this is another run of that name, with its own program."""
    if job.updates.recalled and job.members.before is not None:
        log.info("updates_forgotten", job=job.name, number=job.updates.number)
        job.updates = Updates()
        job.services.memory.update(job.name, None)
