"""What a stop of a job would lose for good, because nothing is saved."""

from __future__ import annotations

from pulsetrain.recovery.saves import restorable_without
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase

UNSEEN_S = 600.0
"""An attempt that has named no step for so long may work all the same, in a way that nobody sees."""


def done(job: JobState) -> str:
    """What the present attempt has done, as words for what would be lost. "" where that is nothing.

    Not every script names its steps. One whose ranks make progress counts as training after `stepless_s`.
    Of one that shows nothing at all, as with `--no-python`, a long time is taken for work. So is an attempt
    that an earlier hub launched: how long it has run is not known.
    """
    if job.last_step >= 0:
        return f"{job.last_step + 1} steps"
    if job.phase is not Phase.RUNNING:
        return ""
    ran_s = (job.now_ns() - job.attempt.started_ns) / 1e9
    worked = job.attempt.first_step_done or job.attempt.adopted or ran_s > UNSEEN_S
    return "all its work, of which it names no steps," if worked else ""


def lost_now(job: JobState) -> str:
    """What would be lost if the job were stopped now and could go on from nothing, "" where it could."""
    goes_on = restorable_without(job, "") >= 0 or job.own_checkpoints.can_resume()
    return "" if goes_on else done(job)
