"""What a job does about trouble of its machines: cordons standbys, and evicts nodes that train.

This stays within the eviction budget and above the floor of healthy nodes. In observe-only mode it is written
down instead.
"""

from __future__ import annotations

from collections.abc import Callable

from pulsetrain.recovery import faults, scheduling, standby_care
from pulsetrain.recovery.hardware_verdicts import CheckpointWait, HardwareVerdict
from pulsetrain.recovery.nodes import GONE, Node, NodeState
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.response import Response
from pulsetrain.recovery.saves import (
    ask_for_saves,
    end_saves,
    has_checkpointer,
    is_writing,
    proven_without,
    restorable_without,
)
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase

Report = Callable[[Fault], None]
"""Takes the fault that stops the job."""


def respond(job: JobState, report: Report) -> None:
    """Do what the open verdicts ask for."""
    if job.hardware.take_ended_wait() and job.move is None:
        end_saves(job)
    for verdict in job.hardware.open.values():
        node = job.members.nodes.get(verdict.node)
        if node is None or node.state in GONE:
            continue
        _cordon(job, node, verdict)
        running = job.phase in (Phase.RUNNING, Phase.STARTING)
        if verdict.response.evicts and node.state is NodeState.ACTIVE and running:
            _evict(job, verdict, report)
    _clear(job)


def _clear(job: JobState) -> None:
    """End the cordon of nodes that train and have been without trouble for long: their work is the check."""
    now_s = job.services.clock.monotonic_s()
    for node in job.members.active():
        clean = node.name not in job.hardware.open and now_s - node.clean_since_s >= node.probation_s
        if node.cordon and clean:
            job.write("uncordon", {"reason": node.cordon}, node=node.name)
            node.cordon = ""
            job.forget(node.name)


def _cordon(job: JobState, node: Node, verdict: HardwareVerdict) -> None:
    """Keep the node from being promoted, from now on or once it is a standby."""
    if job.services.policy.observe_only:
        if node.state is NodeState.STANDBY:
            _tell(job, "would", verdict, event="cordon")
        return
    if not node.cordon:
        job.write("cordon", verdict.detail(), node=node.name)
    reason = standby_care.cordon_reason(node, verdict.reason)
    changed, node.cordon = node.cordon != reason, reason
    node.probation_s = job.services.policy.probation_s
    node.clean_since_s = job.services.clock.monotonic_s()
    if changed:
        job.remember(node)


def _evict(job: JobState, verdict: HardwareVerdict, report: Report) -> None:
    if job.services.policy.observe_only:
        asked = "; ".join(scheduling.would(job, verdict.node, drained=True))
        _tell(job, "would", verdict, event=str(verdict.response), **({"scheduler": asked} if asked else {}))
        return
    why_not = _held_back(job, verdict)
    if why_not:
        _tell(job, "eviction_deferred", verdict, why_not=why_not)
        return
    known = len(job.members.present())
    now_s = job.services.clock.monotonic_s()
    refusal = job.budget.refusal(now_s=now_s, known=known, healthy=known - len(job.hardware.evicting()))
    if refusal:
        if verdict.node in job.hardware.waiting and job.hardware.first("end saves", verdict.node):
            end_saves(job)
        _tell(job, "eviction_refused", verdict, why_not=refusal)
        return
    number, now_ns = job.attempt.number, job.now_ns()
    if job.hardware.first("evict", str(number), verdict.node):
        onset_ns = min(verdict.onset_ns or now_ns, now_ns)
        report(faults.hardware(verdict.node, verdict.reason, verdict.kind, number, now_ns, onset_ns=onset_ns))


def _held_back(job: JobState, verdict: HardwareVerdict) -> str:
    """Why an eviction at a step boundary waits: for a standby, for a checkpoint, or until it is clear
    that the node is to blame. "": it does not."""
    if verdict.response is Response.EVICT_NOW:
        return ""
    if not_its_own := job.hardware.not_its_own(verdict):
        return not_its_own
    if not job.members.standbys():
        pool = "no other machine of the pool is free for it: the node trains on"
        return pool if job.services.pooled else "no standby: the node trains on"
    now_s = job.services.clock.monotonic_s()
    wait = job.hardware.waiting.get(verdict.node)
    if wait is None:
        wait = job.hardware.waiting[verdict.node] = CheckpointWait(since_s=now_s, newer_than=job.last_step)
        ask_for_saves(job)
    newest = proven_without(job, verdict.node)
    if newest < 0 <= restorable_without(job, verdict.node):
        return "it is not known whether the script goes on from its checkpoint: the node trains on"
    if is_writing(job):
        return "it waits until the script has written its checkpoint"
    if newest >= wait.newer_than:
        return ""
    if not has_checkpointer(job):
        return "it waits for the script's next checkpoint: the node trains on"
    late = now_s - wait.since_s >= job.services.policy.checkpoint_patience_s
    return "" if late and newest >= 0 else "it waits for a checkpoint that holds without the node"


def at_a_stop(job: JobState) -> dict[str, str]:
    """Nodes of a stopped job that are to go before it starts again, with the reason.

    What may wait for a step boundary also waits for a standby, and stays where steps would be lost with it.
    """
    if job.services.policy.observe_only:
        return {}
    members, going = job.members, dict(job.members.failed)
    for verdict in job.hardware.evicting():
        node = members.nodes.get(verdict.node)
        if node is None or node.state is not NodeState.ACTIVE or verdict.node in going:
            continue
        if job.hardware.not_its_own(verdict):
            continue
        spare = [n for n in members.standbys() if n.name not in going]
        left = [n for n in members.active() if n.name not in {*going, verdict.node}]
        replaceable = len(left) + len(spare) >= job.resizing.size
        costs_steps = restorable_without(job, verdict.node) < restorable_without(job, "")
        if verdict.response is Response.EVICT_NOW or (replaceable and not costs_steps):
            going[verdict.node] = verdict.reason
    return {name: reason for name, reason in going.items() if name not in members.failed}


def _tell(job: JobState, kind: str, verdict: HardwareVerdict, **more: str) -> None:
    """Write an event, once for each reason of an attempt."""
    key = (kind, str(job.attempt.number), verdict.node, str(verdict.response), *more.values())
    if job.hardware.first(*key):
        job.write(kind, {**verdict.detail(), **more}, node=verdict.node)
