"""What stopping a job costs: time of its GPUs, and what that does to the share of time that it trains. Pure.

The cost of a stop is the time until the job has its next step, and the time of the steps that are done again
(Unicron and ByteRobust price a recovery so). It is expected, from the job's own past.
"""

from __future__ import annotations

from typing import TypedDict

from pulsetrain.recovery import world
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.time_use import HOUR_NS


class Price(TypedDict):
    """`stop_s` is the expected time without new steps, `lost_gpu_s` that time for all ranks, in GPU seconds.

    `ettr_1h_change` is what it takes from the share of the next hour that trains, 0 to -1. All are None where
    the job has never recovered, so that nobody knows how long it takes.
    """

    stop_s: float | None
    lost_gpu_s: float | None
    ettr_1h_change: float | None


UNKNOWN: Price = {"stop_s": None, "lost_gpu_s": None, "ettr_1h_change": None}


def resume_step(job: JobSnapshot, *, without: str = "") -> int:
    """The step from which the job would go on now, -1 where it would begin anew. `without` is a node that
    could give nothing."""
    own = job.own_checkpoint
    own_step = own.resumable_step if own is not None else -1
    return max(world.plan_restore(job.world, job.held(without=without)).step, own_step)


def usual_recovery_s(job: JobSnapshot) -> float | None:
    """The median time from a fault to the next step in this job's past, None where there was no fault."""
    past_s = sorted(detail["total_ns"] / 1e9 for detail in job.history)
    return past_s[len(past_s) // 2] if past_s else None


def of_restart(job: JobSnapshot, *, without: str = "") -> Price:
    """The price of stopping the job now, and of starting it from the newest step that it can get."""
    return of_stop(job, lost_steps=max(job.last_step - resume_step(job, without=without), 0))


def of_stop(job: JobSnapshot, *, lost_steps: int) -> Price:
    """The price of stopping the job once now, with so many steps to do again."""
    recovery_s = usual_recovery_s(job)
    return UNKNOWN if recovery_s is None else price(recovery_s + lost_steps * job.step_s, job.world_size)


def price(stop_s: float, ranks: int) -> Price:
    """The price of so many seconds without new steps.

    >>> price(36.0, ranks=1000)
    {'stop_s': 36.0, 'lost_gpu_s': 36000.0, 'ettr_1h_change': -0.01}
    """
    hour_s = HOUR_NS / 1e9
    return {
        "stop_s": round(stop_s, 3),
        "lost_gpu_s": round(stop_s * ranks, 1),
        "ettr_1h_change": -round(min(1.0, stop_s / hour_s), 6),
    }
