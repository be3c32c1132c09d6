"""Failures of the present attempt about which a hub that only observes does nothing.

They are kept so that people are told. Ranks that still run are left alone, though torchrun would end them.
Once none is left, the job is over as it is under torchrun: else its agents would wait for ever.
"""

from __future__ import annotations

from typing import Protocol

from pulsetrain.protocol.messages import WorldNode
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event, Phase

NAMED_S = 5.0
"""How long the job stands without a rank before it is over. Meanwhile the cause is named."""
LOST_S = 300.0
"""The same where ranks are on lost nodes: they may run, and their agents may be back."""
_FAILURES = (Event.RANK_FAILED, Event.NODE_LOST, Event.START_FAILED)
_LAUNCHED = (Phase.STARTING, Phase.RUNNING)


class Loop(Protocol):
    """Takes what follows."""

    def post(self, event: Event) -> None: ...


def note(job: JobState, fault: Fault) -> None:
    """Keep a fault that was written down instead of acted on."""
    if fault.event in _FAILURES and fault.attempt == job.attempt.number:
        job.attempt.left_alone = [f for f in job.attempt.left_alone if _stands(job, f)] + [fault]


def present(job: JobState) -> Fault | None:
    """The first failure of the present attempt that still stands: a lost node may have come back."""
    if job.phase not in _LAUNCHED:
        return None
    return next((fault for fault in job.attempt.left_alone if _stands(job, fault)), None)


def look(job: JobState, loop: Loop) -> None:
    """End a job of which a rank has failed and none is left. Where a rank may still run, it is left alone."""
    fault, attempt, now_s = present(job), job.attempt, job.services.clock.monotonic_s()
    if fault is None or not _none_is_left(job):
        attempt.none_left_s = None
    elif attempt.none_left_s is None:
        attempt.none_left_s = now_s
    elif now_s - attempt.none_left_s >= (NAMED_S if _all_ended(job) else LOST_S):
        job.failure = f"{fault.reason}; no rank is left, and a hub that only observes restarts none"
        loop.post(Event.EXHAUSTED)


def _stands(job: JobState, fault: Fault) -> bool:
    return fault.event is not Event.NODE_LOST or _is_lost(job, fault.node)


def _is_lost(job: JobState, name: str) -> bool:
    node = job.members.nodes.get(name)
    return node is None or node.state is NodeState.LOST


def _all_ended(job: JobState) -> bool:
    ended = {exit_.rank for exit_ in job.attempt.exits}
    return all(ended.issuperset(member.ranks) for member in job.members.world)


def _none_is_left(job: JobState) -> bool:
    """Whether a rank has failed, and each other one has ended or is on a lost node."""
    exits = job.attempt.exits
    if not any(exit_.code for exit_ in exits):
        return False
    ended = {exit_.rank for exit_ in exits}

    def has_none(member: WorldNode) -> bool:
        return ended.issuperset(member.ranks) or _is_lost(job, member.node)

    return all(map(has_none, job.members.world))
