"""How large a job's world is and may be, as the hub's API shows it, with what waiting and shrinking cost."""

from __future__ import annotations

from typing import TypedDict

from pulsetrain.recovery import restart_cost
from pulsetrain.recovery.resizing import shrinking_cost_s
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import Phase


class ResizingRow(TypedDict):
    """The present size and the allowed ones, in nodes.

    While the job waits: `missing_nodes` are needed to go on at all, 0 where it may go on with `next_nodes`.
    `waiting_gpu_s` is what the wait has cost so far, `shrinking_gpu_s` what two stops would cost (None where
    the job has never recovered). `why_not` says why it keeps its size, "" where it does not have to.
    """

    nodes: int
    least: int
    most: int
    unit: int
    missing_nodes: int
    next_nodes: int
    waited_s: float
    waiting_gpu_s: float
    shrinking_gpu_s: float | None
    why_not: str


def resizing_row(job: JobSnapshot) -> ResizingRow | None:
    """How the size of a job stands, None where it is fixed."""
    resizing = job.resizing
    if resizing is None or not resizing.sizes.elastic:
        return None
    sizes, waits = resizing.sizes, job.phase is Phase.WAITING
    here = len(job.active()) + len(job.standbys())
    ranks = len(job.active()) * (job.world[0].nproc if job.world else 0)
    since_ns = job.fault.detected_ns if job.fault is not None else job.phase_since_ns
    waited_s = (job.now_ns - since_ns) / 1e9 if waits else 0.0
    stop_s = restart_cost.usual_recovery_s(job)
    return {
        "nodes": len(job.world),
        "least": sizes.smallest,
        "most": sizes.largest,
        "unit": sizes.unit,
        "missing_nodes": max(0, sizes.smallest - here),
        "next_nodes": sizes.fit(here),
        "waited_s": round(waited_s, 3),
        "waiting_gpu_s": round(waited_s * ranks, 1),
        "shrinking_gpu_s": None if stop_s is None else round(shrinking_cost_s(stop_s) * ranks, 1),
        "why_not": resizing.why_not,
    }
