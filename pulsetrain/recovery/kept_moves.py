"""What a new hub must know of a job that was pre-empted, or is about to be."""

from __future__ import annotations

from dataclasses import replace

from pulsetrain.recovery.memory import Preemption
from pulsetrain.recovery.move_request import Image, Move, MoveRequest
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase


def keep(job: JobState, move: Move, *, stopped_ns: int) -> None:
    """A new hub must know of it, and of processes that are being restored just now: perhaps they are not."""
    request, image = move.request, move.image or job.attempt.image
    kept = Preemption(
        reason=request.reason,
        actor=request.actor,
        step=max(move.from_step, move.newer_than, image.step if image else -1),
        stopped_ns=stopped_ns,
        wait_s=request.wait_s,
        lose_progress=request.lose_progress,
        image=image.name if image else "",
        image_node=image.node if image else "",
        restoring=move.restoring or (job.attempt.image is not None and not _is_asked(job)),
    )
    job.services.memory.preemption(job.name, kept)


def take_back(job: JobState, move: Move | None) -> None:
    """The job is not to stop any more. An image from which it has not gone on yet must not be forgotten."""
    waits = job.recovery is not None and job.recovery.image is not None
    if move is not None and (waits or job.attempt.image is not None):
        keep(job, move, stopped_ns=job.now_ns())
    else:
        job.services.memory.preemption(job.name, None)


def keep_restoring(job: JobState) -> None:
    """The processes of the job are about to be restored. A new hub must not end them if they run by then."""
    kept = job.services.memory.recall(job.name).preemption
    if kept is not None and not _is_asked(job):
        job.services.memory.preemption(job.name, replace(kept, restoring=True))


def keep_restored(job: JobState) -> None:
    """They run. Perhaps somebody has asked meanwhile to stop them again."""
    if job.move is not None and _is_asked(job):
        job.move.image = None
        keep(job, job.move, stopped_ns=0)
    else:
        job.services.memory.preemption(job.name, None)


def _is_asked(job: JobState) -> bool:
    return job.move is not None and job.move.request.what == "preempt"


def recall(job: JobState) -> None:
    """Go on where an earlier hub has pre-empted the job, or was asked to."""
    kept = job.services.memory.recall(job.name).preemption
    if kept is None:
        return
    request = MoveRequest(
        what="preempt",
        reason=kept.reason,
        actor=kept.actor,
        wait_s=kept.wait_s,
        lose_progress=kept.lose_progress,
    )
    job.move = Move(
        request=request,
        asked_ns=kept.stopped_ns or job.now_ns(),
        asked_s=job.services.clock.monotonic_s(),
        newer_than=kept.step,
        from_step=kept.step,
        restoring=kept.restoring,
    )
    if kept.image:
        step, node = kept.step, kept.image_node
        job.move.image = Image(node=node, attempt=-1, name=kept.image, step=step, state="taken")
    if kept.stopped_ns and not kept.restoring:
        job.enter(Phase.PREEMPTED)
