"""Nodes that were given up, and come back with ranks of the present attempt that nobody has ended.

The hub was cut off from all of them for longer than a node may be. Nobody was told to stop and nothing was
launched, so their ranks train on. Once all nodes of the world are back, the job is taken over where it is.
"""

from __future__ import annotations

from pulsetrain.protocol.messages import Hello
from pulsetrain.recovery.nodes import Node, NodeState, agent_of
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event, Phase

_STANDS = (Phase.SUSPENDING, Phase.CHECKING, Phase.WAITING)


def is_unharmed(job: JobState, node: Node, hello: Hello) -> bool:
    """Whether a lost node that says `hello` still does what the job wants of it."""
    if (
        node.state is not NodeState.LOST
        or node.leaving is not None
        or not node.agent.is_same(agent_of(hello))
    ):
        return False
    return hello.attempt == job.attempt.number and _runs_on(job) and _in_its_place(job, hello)


def takes_its_place(job: JobState, node: Node) -> bool:
    """Whether a node that is new here runs ranks of the present attempt, of which nobody has heard so far.

    Only a hub that observes has such places. Another one has the attempt ended for them.
    """
    if not job.services.policy.observe_only or node.hello.attempt != job.attempt.number or not _runs_on(job):
        return False
    return job.members.take_place(node)


def awaited(job: JobState) -> bool:
    """Whether a job that stands has nodes back whose ranks were not ended, so that the others may follow."""
    if job.recovery is None or job.phase not in _STANDS or not _runs_on(job):
        return False
    return any(_trains(job, node) for node in job.members.active())


def may_come(job: JobState) -> bool:
    """Whether a job that waits may yet be taken over: nodes are back, or it has not waited for long."""
    if job.phase is not Phase.WAITING or job.recovery is None or not _runs_on(job):
        return False
    return awaited(job) or job.in_phase_s() <= job.services.policy.adopt_timeout_s


def all_back(job: JobState) -> bool:
    """Whether every node of the world is back with its ranks."""
    nodes = job.members.active()
    return len(nodes) == len(job.members.world) and all(_trains(job, node) for node in nodes)


def are_hopeless(job: JobState) -> bool:
    """Whether the world has a node that does not run the attempt, so that the others wait in vain."""
    return any(not _trains(job, node) for node in job.members.active())


def still_running(job: JobState) -> list[Node]:
    """Nodes of the world that run ranks of the attempt."""
    return [node for node in job.members.active() if node.hello.attempt == job.attempt.number]


def _runs_on(job: JobState) -> bool:
    """Whether the attempt was launched, and has lost nothing but connections."""
    attempt, recovery = job.attempt, job.recovery
    launched = attempt.launched or job.services.policy.observe_only  # that one ends nothing after a fault
    if not launched or attempt.stopped or job.updates.changes_program:
        return False
    return recovery is None or recovery.fault.event is Event.NODE_LOST


def _trains(job: JobState, node: Node) -> bool:
    return node.hello.attempt == job.attempt.number and job.members.may_use(node)


def _in_its_place(job: JobState, hello: Hello) -> bool:
    world = job.members.world
    ranks = [member.node_rank for member in world if member.node == hello.node]
    return ranks == [hello.node_rank] and hello.world_nodes in (0, len(world))
