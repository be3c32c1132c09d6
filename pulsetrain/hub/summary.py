"""One sentence that says how a job is. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TypedDict

from pulsetrain.protocol.messages import NOT_READ
from pulsetrain.records.findings import Finding
from pulsetrain.recovery import faults
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.resizing_view import ResizingRow, resizing_row
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import Phase

SLOW_KINDS = ("straggler", "fail_slow", "mfu_decay", "stage_imbalance", "sequence_imbalance", "data_stall")
SILENT_S = 5.0
MINUTES_FROM_S = 300.0
"""A person reads a longer time in minutes."""
TROUBLES = ("hung", "slow", "warning")
"""States of a job with findings, the worst first."""


class Summary(TypedDict):
    """How a job is: a state for programs, a sentence for people, and since when."""

    state: str
    sentence: str
    since_ns: int


def summarize(
    job: JobSnapshot, findings: Sequence[Finding], worst_since_ns: int = 0, unseen: str = ""
) -> Summary:
    """The summary of a job. `findings` are open, the worst first.

    `worst_since_ns` is when `worst_of` them began. `unseen` says what is not looked at, "" for nothing.
    """
    state, sentence = _judge(job, findings, unseen)
    troubled = worst_of(findings) is not None and state in ("slow", "hung", "warning")
    return {
        "state": state,
        "sentence": sentence,
        "since_ns": worst_since_ns if troubled else job.phase_since_ns,
    }


def worst_of(findings: Sequence[Finding]) -> Finding | None:
    """The first finding that is more than information: that makes no job slow."""
    return next((finding for finding in findings if finding.severity != "info"), None)


def trouble_state(worst: Finding) -> str:
    """The state of a job whose worst finding is this one."""
    return "hung" if worst.kind == "hang" else "slow" if worst.kind in SLOW_KINDS else "warning"


def _judge(job: JobSnapshot, findings: Sequence[Finding], unseen: str) -> tuple[str, str]:
    if job.left_alone is not None and job.phase is Phase.STARTING:
        return _left_alone(job.left_alone, findings)
    cause = job.fault.reason if job.fault else ""
    match job.phase:
        case Phase.FORMING:
            return "forming", _forming(job)
        case Phase.CHECKING if job.launches_in_s > 0:
            return "recovering", f"Failed again, launches again in {math.ceil(job.launches_in_s)} s: {cause}."
        case Phase.SUSPENDING | Phase.CHECKING:
            return "recovering", f"Stopped and checking nodes: {cause}."
        case Phase.WAITING:
            return "recovering", _waiting(job, cause)
        case Phase.PREEMPTING | Phase.PREEMPTED:
            return "preempted", _preempted(job)
        case Phase.STARTING:
            return ("recovering", f"Relaunching after: {cause}.") if cause else ("starting", "Starting.")
        case Phase.FINISHED:
            return "finished", f"Finished after step {job.last_step}."
        case Phase.FAILED if job.ended_by:
            return "ended", f"Ended by {job.ended_by}{_after(job.last_step)}."
        case Phase.FAILED:
            return "failed", f"Failed: {job.failure}."
    return _running(job, findings, cause, unseen)


def _forming(job: JobSnapshot) -> str:
    """What a job that was not launched waits for: nodes, or storage that may have its checkpoints."""
    here = [node for node in job.nodes if node.usable]
    unread = [n.name for n in here if n.heartbeat is not None and n.heartbeat.stored_attempt == NOT_READ]
    if len(here) >= job.nnodes and unread:
        return f"Waiting until {len(unread)} of {len(here)} nodes have read the storage of its checkpoints."
    return f"Waiting for nodes: {len(here)} of {job.nnodes} joined."


def _waiting(job: JobSnapshot, cause: str) -> str:
    """For how many nodes the job waits. One whose size may change waits for the fewest that are enough."""
    if job.state_awaited_of:
        names = ", ".join(job.state_awaited_of)
        steps = f"without whose memory {job.state_awaited_steps} steps are lost"
        return f"Waiting for lost node(s) {names}, {steps}: {cause}."
    row = resizing_row(job)
    missing = (row["nodes"] if row else job.nnodes) - len(job.active())
    if row is None or row["why_not"]:
        more = f" It cannot go on with fewer: {row['why_not']}." if row else ""
        return f"Waiting for {missing} more node(s): {cause}.{more}"
    if row["missing_nodes"]:
        return f"Waiting for {row['missing_nodes']} more node(s): {cause}."
    left = f"It goes on with {row['next_nodes']} of {row['nodes']} nodes soon"
    return f"Waiting for {missing} more node(s): {cause}. {left}: {_costs(row)}."


def _costs(row: ResizingRow) -> str:
    """What waiting and shrinking cost, in GPU seconds."""
    stops = row["shrinking_gpu_s"]
    known = "not known yet" if stops is None else f"{stops:.0f} GPU s"
    return f"waiting has cost {row['waiting_gpu_s']:.0f} GPU s, shrinking and growing again is {known}"


def _preempted(job: JobSnapshot) -> str:
    """Who stopped the job and why, and how it goes on."""
    if job.move is None:
        return "Pre-empted."
    why = f"{job.move.request.reason} ({job.move.request.actor})"
    if job.phase is Phase.PREEMPTING:
        return f"Stopping to be pre-empted: {why}."
    resume = f"pulsetrain resume {shlex.quote(job.job)}"
    return f"Pre-empted{_after(job.move.from_step)}: {why}. Resume it with: {resume}"


def _after(step: int) -> str:
    return f" after step {step}" if step >= 0 else " before the first step"


def _what_follows(job: JobSnapshot, worst: Finding) -> str:
    """What will be done about a hang that may be a pause. "" for everything else."""
    pending = job.pending_hang
    if worst.kind != "hang" or pending is None:
        return ""
    if pending.act_at_ns is None:
        return f". {pending.why}"
    left_s = max(0.0, (pending.act_at_ns - job.now_ns) / 1e9)
    left = f"{left_s:.0f} s" if left_s < MINUTES_FROM_S else f"{left_s / 60:.0f} min"
    return f". {pending.why} That is in {left}."


def _left_alone(fault: Fault, findings: Sequence[Finding]) -> tuple[str, str]:
    """What failed where the hub only observes: the cause, once it is named."""
    named = next((f.summary for f in findings if f.kind in ("crash", "node_lost")), fault.reason)
    return "warning", f"{named.rstrip('.')}. This hub only observes: it restarts nothing."


def _gone(job: JobSnapshot) -> str:
    """Which rank or node of a running job is gone, "" for none."""
    failed = next((exit_ for exit_ in job.exits if exit_.code != 0), None)
    if failed is not None:
        return f"A rank has failed: {faults.rank_failed(failed, job.now_ns).reason}"
    lost = job.lost_nodes()
    return f"Lost node(s): {', '.join(lost)}" if lost else ""


def _running(job: JobSnapshot, findings: Sequence[Finding], cause: str, unseen: str) -> tuple[str, str]:
    if job.silent_s > max(SILENT_S, job.usual_silence_s):
        return "no_data", f"No report from any rank for {job.silent_s:.0f} s."
    if job.left_alone is not None:
        return _left_alone(job.left_alone, findings)
    if (worst := worst_of(findings)) is not None:
        return trouble_state(worst), f"{worst.summary}{_what_follows(job, worst)}"
    if gone := _gone(job):
        return "warning", f"{gone}."
    if not job.first_step_done:
        what = f"recovering from: {cause}" if cause else "no step completed yet"
        return ("recovering" if cause else "starting"), f"Attempt {job.attempt} is starting; {what}."
    row = resizing_row(job)
    fewer = f" on {row['nodes']} of {row['most']} nodes" if row and row["nodes"] < row["most"] else ""
    note = f" To know: {findings[0].summary}" if findings else ""
    step = f"step {job.last_step}" if job.last_step >= 0 else "no step known"  # it names none, or not yet
    seen = f"{step}, {job.world_size} ranks{fewer}, no fault seen."
    if unseen:
        return "healthy", f"Healthy as far as is seen: {seen} Not seen: {unseen.rstrip('.')}.{note}"
    return "healthy", f"Healthy: {seen}{note}"
