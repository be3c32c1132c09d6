"""Ends a job that begins anew beside a checkpoint that its script has written, before that is written over.

A script that reads its checkpoint only where it is told to starts at step 0 after a restart, and soon writes
its file again. One that warms up makes a few steps before it reads, so some are waited for. Under torchrun,
which restarts nothing by default, the job would have ended and the file would be there still.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from pulsetrain.recovery.memory import StopMemory
from pulsetrain.recovery.record import Recovery
from pulsetrain.recovery.state import JobState, LeftBehind
from pulsetrain.recovery.transitions import Event, Phase

ADVICE = "start it with the script's own option to resume, or with --max-restarts N to let it begin anew"
GRACE_S, GRACE_STEPS = 60.0, 20  # a script that reads its checkpoint has done so when both are over
FAILURES = (Event.RANK_FAILED, Event.NODE_LOST, Event.HANG, Event.START_FAILED, Event.EVICT)
"""Where the controller says so, nobody has wanted the job to begin anew."""


class Loop(Protocol):
    """Takes what follows."""

    def post(self, event: Event) -> None: ...


def keep(job: JobState) -> None:
    """The job has stopped, or is launched after that. Keep what its script has saved by itself so far.

    A new hub does not learn from ranks what those of earlier attempts have saved.
    """
    number, recovery, known = job.attempt.number + 1, job.recovery, job.stop
    own = job.own_checkpoints.newest_before(number)
    if recovery is None:  # an earlier hub has kept it
        return
    if own is not None:
        gap = job.own_checkpoints.shortest_gap(number)
        known = StopMemory(path=own.path, step=own.step, attempt=own.attempt, gap=gap)
    if known is not None:
        known = replace(
            known,
            reason=recovery.fault.reason,
            wanted=not _has_failed(recovery),
            pids=[agent.pid for agent in recovery.from_agents],
            agent_ids=[agent.id for agent in recovery.from_agents],
            begun=-1,
        )
    job.keep_stop(known)


def look(job: JobState, loop: Loop) -> None:
    """Say that the job has begun anew, and end it where nobody can have wanted that."""
    left = job.left_behind
    if left is None or (job.phase is Phase.STARTING and job.attempt.number == left.attempt):
        return  # all ranks may have stepped a moment before the launch counts as answered
    if job.phase is not Phase.RUNNING or job.attempt.number != left.attempt:
        job.left_behind = None
    elif (step := _step_read(job)) >= 0:
        _forget(job)
        job.own_checkpoints.started(left.attempt, step)
    elif _is_over(job, left):
        _forget(job)
        _tell(job, left.stop, loop)


def _forget(job: JobState) -> None:
    job.left_behind = None
    job.keep_stop(None)


def _step_read(job: JobState) -> int:
    """The step that a rank goes on from by now, -1 for none."""
    return max((rank.resumed_step for rank in job.members.statuses(job.attempt.number)), default=-1)


def _is_over(job: JobState, left: LeftBehind) -> bool:
    """Whether the script has had its time to read. That ends half-way to its first save at the latest."""
    number = left.attempt
    done = 1 + max((rank.last_step for rank in job.members.statuses(number)), default=-1)
    if job.own_checkpoints.begun_step(number) >= 0 or 2 * done >= left.stop.gap:
        return True
    return done >= GRACE_STEPS and job.services.clock.monotonic_s() - left.since_s >= GRACE_S


def _tell(job: JobState, stop: StopMemory, loop: Loop) -> None:
    hellos = [node.hello for node in job.members.active()]
    wanted = stop.wanted or any(hello.may_begin_anew for hello in hellos) or _is_another_run(job, stop)
    tells = all(hello.takes_run for hello in hellos)  # older agents do not say what is wanted
    ends = tells and not wanted and not job.services.policy.observe_only
    job.write("began_anew", {"path": stop.path, "step": stop.step, "attempt": stop.attempt, "ended": ends})
    if ends:
        why = (
            f"training began anew and was ended, so that {stop.path} of step {stop.step} is not written over"
        )
        job.failure = f"{stop.reason}; {why}: {ADVICE}"
        job.ends_at_once = True  # a script that saves at a signal would write over it
        loop.post(Event.EXHAUSTED)


def _is_another_run(job: JobState, stop: StopMemory) -> bool:
    """Whether no agent that was there at the stop is here: who has started all of them anew began a run.

    Nobody begins one with declared standbys alone.
    """
    active, before = job.members.active(), stop.agents()
    if not before or all(node.hello.standby for node in active):
        return False
    return not any(node.agent.is_same(agent) for node in active for agent in before)


def _has_failed(recovery: Recovery) -> bool:
    """Whether the job was stopped by a failure or a pool, and neither by a person nor for another size."""
    fault = recovery.fault
    failed = fault.event in FAILURES and fault.actor == "controller"
    return (failed or recovery.by_pool) and not recovery.lose_progress
