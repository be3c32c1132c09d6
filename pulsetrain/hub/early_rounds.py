"""Whether rounds of a starting job's collectives may tell who is slow. Pure.

A script that names no steps counts as training only after a while (`stepless_s`), because what a recovery
does depends on it. To look at its rounds does no harm before: they name nobody until they repeat themselves,
which loading and compiling seldom do, and what they find is a warning at most.
"""

from __future__ import annotations

from pulsetrain.protocol.late_rows import column
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import Phase

EARLY_S = 10.0  # after the launch
BUSY_NS = 5_000_000_000  # a rank whose last sign of work is younger than that works


def may_tell(job: JobSnapshot) -> bool:
    """Whether all ranks of an attempt that has run for a few seconds work, and none has named a step."""
    if job.phase is not Phase.RUNNING or job.first_step_done or job.started_ns <= 0:
        return False
    if job.now_ns - job.started_ns < EARLY_S * 1e9:
        return False
    ranks = 0
    for node, heartbeat in job.reporting():
        beat_ns, of_node = node.heartbeat_age_s * 1e9, heartbeat.ranks
        ranks += len(of_node)
        if any(step >= 0 for step in column(of_node, "last_step")):
            return False
        if not all(column(of_node, "progress")):
            return False
        if any(age_ns + beat_ns >= BUSY_NS for age_ns in column(of_node, "progress_age_ns")):
            return False
    return 0 < job.world_size == ranks
