"""One sentence that says how a job is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsetrain.records.findings import Finding
from pulsetrain.recovery.job import Job
from pulsetrain.recovery.transitions import Phase

SLOW_KINDS = ("straggler", "fail_slow", "mfu_decay", "stage_imbalance", "sequence_imbalance", "data_stall")


def verdict(job: Job, findings: Sequence[Finding], silent_s: float) -> dict[str, Any]:
    """{"state", "sentence", "since_ns"}; `findings` are open, `silent_s` is the newest report's age."""
    state, sentence = _judge(job, findings, silent_s)
    since = findings[0].ts_ns if findings and state in ("slow", "hung", "warning") else job.phase_since_ns
    return {"state": state, "sentence": sentence, "since_ns": since}


def _judge(job: Job, findings: Sequence[Finding], silent_s: float) -> tuple[str, str]:
    cause = job.recovery.fault.reason if job.recovery else ""
    match job.phase:
        case Phase.FORMING:
            here = sum(1 for n in job.nodes.values() if n.usable)
            return "forming", f"Waiting for nodes: {here} of {job.nnodes} joined."
        case Phase.SUSPENDING | Phase.CHECKING:
            return "recovering", f"Stopped and checking nodes: {cause}."
        case Phase.WAITING:
            missing = job.nnodes - len(job.active())
            return "recovering", f"Waiting for {missing} more node(s): {cause}."
        case Phase.STARTING:
            return ("recovering", f"Relaunching after: {cause}.") if cause else ("starting", "Starting.")
        case Phase.FINISHED:
            return "finished", f"Finished after step {job.last_step}."
        case Phase.FAILED:
            return "failed", f"Failed: {job.failure}."
    return _running(job, findings, silent_s, cause)


def _running(job: Job, findings: Sequence[Finding], silent_s: float, cause: str) -> tuple[str, str]:
    if silent_s > 5:
        return "no_data", f"No report from any rank for {silent_s:.0f} s."
    if findings:
        worst = findings[0]
        state = "hung" if worst.kind == "hang" else "slow" if worst.kind in SLOW_KINDS else "warning"
        return state, worst.summary
    if not job.first_step_done:
        what = f"recovering from: {cause}" if cause else "no step completed yet"
        return ("recovering" if cause else "starting"), f"Attempt {job.attempt} is starting; {what}."
    return "healthy", f"Healthy: step {job.last_step}, {job.world_size} ranks, no fault seen."
