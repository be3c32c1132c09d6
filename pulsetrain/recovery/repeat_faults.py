"""A node that stops its job again and again is replaced, if that is the node's fault and not the job's.

What ends ranks on all nodes alike is no fault of one of them. So an error that ranks of several nodes have
ended with does not count, whatever it is called, and a node must be at fault far more often than any other.
A node that is lost before the first step counts as well: one whose agent dies in each attempt and comes back
would stop the job for ever. Later on nodes come and go for reasons of others, too.
"""

from __future__ import annotations

import re

from pulsetrain.protocol.exits import last_error
from pulsetrain.recovery import arithmetic_checks
from pulsetrain.recovery.back_off import COUNTED
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event

REMEMBERED_S = 86400.0  # a fault of a node
MORE_OFTEN = 2  # than any other node that trains must a node be at fault
MOST_ERRORS = 256
"""Errors that are remembered, the newest."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def at_a_stop(job: JobState) -> dict[str, str]:
    """The node that is at fault, with the reason, where that is so for the third time and a standby is there.

    Without one the job would have to wait. The user's own exceptions are no fault of a node. Nor is a NaN of
    a node whose products were right at this stop, nor an error that another node's ranks ended with, too.
    """
    recovery, limit = job.recovery, job.services.policy.faults_of_a_node
    now_s = job.services.clock.monotonic_s()
    if recovery is None or recovery.users_own or not counts(job, recovery.fault):
        return {}
    if recovery.fault.event is Event.HANG:  # rank 0, which saves and evaluates, is always on the same node
        return {}
    if arithmetic_checks.explains(job, recovery.fault) or _is_the_jobs(job, recovery.fault):
        return {}
    node, failed = recovery.fault.node, job.members.failed
    if not recovery.node_counted:
        recovery.node_counted = True
        _forget_old(job, now_s)
        job.restarts.by_node.setdefault(node, []).append(now_s)
    count, others = times(job, node, now_s), [n.name for n in job.members.active() if n.name != node]
    if count <= MORE_OFTEN * max((times(job, other, now_s) for other in others), default=0):
        return {}
    spare = [standby for standby in job.members.standbys() if standby.name not in failed]
    if node not in job.members.nodes or not limit or count < limit or node in failed or not spare:
        return {}
    return {node: f"it has stopped the job {count} times in a day: {recovery.fault.reason}"}


def counts(job: JobState, fault: Fault) -> bool:
    """Whether this fault may be one that comes again in each attempt."""
    lost_at_once = fault.event is Event.NODE_LOST and not job.attempt.first_step_done
    return fault.event in COUNTED or lost_at_once


def _is_the_jobs(job: JobState, fault: Fault) -> bool:
    """Whether ranks of other nodes have ended with the same error, numbers aside. Notes who has."""
    exits = [e for e in job.attempt.exits if (e.node, e.rank) == (fault.node, fault.rank) and e.code > 0]
    errors = {_NUMBERS.sub("0", last_error(e.last_lines)) for e in exits} - {""}
    known = job.restarts.errors
    for error in errors:
        known[error] = known.pop(error, frozenset()) | {fault.node}
    while len(known) > MOST_ERRORS:
        del known[next(iter(known))]
    return any(len(known[error]) > 1 for error in errors)


def _forget_old(job: JobState, now_s: float) -> None:
    """Drop faults that count no more: all that are kept are written at each restart."""
    recent = {n: [at for at in s if now_s - at < REMEMBERED_S] for n, s in job.restarts.by_node.items()}
    job.restarts.by_node = {node: times_s for node, times_s in recent.items() if times_s}


def times(job: JobState, node: str, now_s: float) -> int:
    """How often a node was at fault within a day."""
    return sum(now_s - at_s < REMEMBERED_S for at_s in job.restarts.by_node.get(node, ()))
