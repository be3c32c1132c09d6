"""Ends a job that begins anew beside a checkpoint that its script has written, before that is written over.

A script that reads its checkpoint only where it is told to starts at step 0 after a restart, and soon writes
its file again. One that warms up makes a few steps before it reads, so some are waited for. Under torchrun,
which restarts nothing by default, the job would have ended and the file would be there still.
"""

from __future__ import annotations

from typing import Protocol

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


def look(job: JobState, loop: Loop) -> None:
    """Say that the job has begun anew, and end it where nobody can have wanted that."""
    left = job.left_behind
    if left is None:
        return
    if job.phase is not Phase.RUNNING or job.attempt.number != left.attempt:
        job.left_behind = None
    elif (step := _step_read(job)) >= 0:
        job.left_behind = None
        job.own_checkpoints.started(left.attempt, step)
    elif _is_over(job, left):
        job.left_behind = None
        _tell(job, left, loop)


def _step_read(job: JobState) -> int:
    """The step that a rank goes on from by now, -1 for none."""
    return max((rank.resumed_step for rank in job.members.statuses(job.attempt.number)), default=-1)


def _is_over(job: JobState, left: LeftBehind) -> bool:
    """Whether the script has had its time to read. That ends half-way to its first save at the latest."""
    own, number = job.own_checkpoints, left.attempt
    done = 1 + max((rank.last_step for rank in job.members.statuses(number)), default=-1)
    if own.begun_step(number) >= 0 or 2 * done >= own.shortest_gap(number):
        return True
    return done >= GRACE_STEPS and job.services.clock.monotonic_s() - left.since_s >= GRACE_S


def _tell(job: JobState, left: LeftBehind, loop: Loop) -> None:
    own, hellos = left.own, [node.hello for node in job.members.active()]
    wanted = any(hello.may_begin_anew for hello in hellos) or not _has_failed(left.recovery)
    wanted = wanted or _is_another_run(job, left.recovery)
    tells = all(hello.takes_run for hello in hellos)  # older agents do not say what is wanted
    ends = tells and not wanted and not job.services.policy.observe_only
    job.write("began_anew", {"path": own.path, "step": own.step, "attempt": own.attempt, "ended": ends})
    if ends:
        why = f"training began anew and was ended, so that {own.path} of step {own.step} is not written over"
        job.failure = f"{job.history[-1]['reason']}; {why}: {ADVICE}"
        job.ends_at_once = True  # a script that saves at a signal would write over it
        loop.post(Event.EXHAUSTED)


def _is_another_run(job: JobState, recovery: Recovery) -> bool:
    """Whether no agent that was there at the fault is here: who has started all of them anew began a run.

    Nobody begins one with declared standbys alone.
    """
    here = [node for node in job.members.active() if not node.hello.standby]
    return bool(here and recovery.from_agents) and not any(
        node.agent.is_same(before) for node in job.members.active() for before in recovery.from_agents
    )


def _has_failed(recovery: Recovery) -> bool:
    """Whether the job was stopped by a failure or a pool, and neither by a person nor for another size."""
    fault = recovery.fault
    failed = fault.event in FAILURES and fault.actor == "controller"
    return (failed or recovery.by_pool) and not recovery.lose_progress
