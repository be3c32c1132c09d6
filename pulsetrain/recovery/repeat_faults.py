"""A node that stops its job again and again is replaced, if that is the node's fault and not the job's.

What ends ranks on all nodes alike is no fault of one of them. So an error that ranks of several nodes have
ended with does not count, whatever it is called, and a node must be at fault far more often than any other.
A node that is lost before the first step counts as well: one whose agent dies in each attempt and comes back
would stop the job for ever. Later on nodes come and go for reasons of others, too.

Where the kernel kills a rank because memory is short, either the machine has little of it or that rank takes
much. It is the machine if different ranks die there, and the rank if it dies on another machine as well, or
if it alone of several dies.
"""

from __future__ import annotations

import re
from signal import SIGKILL

from pulsetrain.protocol.exits import last_error
from pulsetrain.recovery import arithmetic_checks
from pulsetrain.recovery.back_off import COUNTED
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event

REMEMBERED_S = 86400.0  # a fault of a node
MORE_OFTEN = 2  # than any other node that trains must a node be at fault
MOST_ERRORS = 256
"""Errors that are remembered, the newest."""
MEMORY_KILLS = ("out_of_memory", "cgroup_out_of_memory")
"""rules of kernel_rules.toml"""
KILLED_WITHIN_NS = 15 * 10**9
"""lies the kernel's line of the end of the rank that it tells of. Agents read its log once a second"""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def at_a_stop(job: JobState) -> dict[str, str]:
    """The node that is at fault, with the reason, where that is so for the third time and a standby is there.

    Without one the job would have to wait. The user's own exceptions are no fault of a node. Nor is a NaN of
    a node whose products were right at this stop, nor an error that another node's ranks ended with, too, nor
    a rank that takes too much memory.
    """
    recovery, limit = job.recovery, job.services.policy.faults_of_a_node
    now_s = job.services.clock.monotonic_s()
    if recovery is None or recovery.users_own or not counts(job, recovery.fault):
        return {}
    if recovery.hung or recovery.fault.event is Event.HANG:  # rank 0, which saves, is always on the same node
        return {}
    if arithmetic_checks.explains(job, recovery.fault) or _is_the_jobs(job, recovery.fault):
        return {}
    if _takes_too_much_memory(job, recovery.fault):
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


def _takes_too_much_memory(job: JobState, fault: Fault) -> bool:
    """Whether the kernel killed a rank for memory, and that rank is why. Notes who was killed where."""
    node = job.members.nodes.get(fault.node)
    if node is None or fault.exit_code != -SIGKILL or not _kernel_kills(node, fault.onset_ns):
        return False
    killed = job.restarts.killed_for_memory
    here = killed[node.name] = killed.get(node.name, frozenset()) | {fault.rank}
    if any(fault.rank in ranks for name, ranks in killed.items() if name != node.name):
        return True
    return len(here) == 1 and node.hello.nproc_per_node > 1


def _kernel_kills(node: Node, at_ns: int) -> bool:
    signs = [s for s in node.heartbeat.hardware if s.kind in MEMORY_KILLS] if node.heartbeat else []
    return any(abs(ns - at_ns) < KILLED_WITHIN_NS for s in signs for ns in (*s.times_ns, s.last_ns))


def _forget_old(job: JobState, now_s: float) -> None:
    """Drop faults that count no more: all that are kept are written at each restart."""
    recent = {n: [at for at in s if now_s - at < REMEMBERED_S] for n, s in job.restarts.by_node.items()}
    job.restarts.by_node = {node: times_s for node, times_s in recent.items() if times_s}


def times(job: JobState, node: str, now_s: float) -> int:
    """How often a node was at fault within a day."""
    return sum(now_s - at_s < REMEMBERED_S for at_s in job.restarts.by_node.get(node, ()))
