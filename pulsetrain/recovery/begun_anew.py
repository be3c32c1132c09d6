"""Ends a job that begins anew beside a checkpoint that its script has written, before that is written over.

A script that reads its checkpoint only where it is told to starts at step 0 after a restart, and soon writes
its file again. Under torchrun, which restarts nothing by default, the job would have ended and the file would
be there still.
"""

from __future__ import annotations

from typing import Protocol

from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event, Phase

ADVICE = "start it with the script's own option to resume, or with --max-restarts N to let it begin anew"


class Loop(Protocol):
    """Takes what follows."""

    def post(self, event: Event) -> None: ...


def look(job: JobState, loop: Loop) -> None:
    """End the job where it has just begun anew, unless somebody wants that."""
    own, job.left_behind = job.left_behind, None
    if own is None or job.phase is not Phase.RUNNING:
        return
    hellos = [node.hello for node in job.members.active()]
    wanted = any(hello.may_begin_anew for hello in hellos)
    tells = all(hello.takes_run for hello in hellos)  # older agents do not say what is wanted
    ends = tells and not wanted and not job.services.policy.observe_only
    job.write("began_anew", {"path": own.path, "step": own.step, "attempt": own.attempt, "ended": ends})
    if ends:
        why = f"training began anew and was ended, so that {own.path} of step {own.step} is not written over"
        job.failure = f"{job.history[-1]['reason']}; {why}: {ADVICE}"
        job.ends_at_once = True  # a script that saves at a signal would write over it
        loop.post(Event.EXHAUSTED)
