"""A job whose nodes are all gone makes way for another run of its name that has other sizes.

One of the same sizes goes on as the job that waits. One of other sizes could not, and would be refused until
the hub is started anew.
"""

from __future__ import annotations

from pulsetrain.protocol.messages import Hello
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.world_sizes import WorldSizes

REASON = "all its nodes are lost, and another run of that name has begun with other sizes"


def makes_way(job: JobState, hello: Hello) -> bool:
    """Whether an agent that says `hello` begins another run, and nobody is left of this one.

    Its agents have been silent for `silent_node_s`. Those of a run that an earlier hub knew may be on their
    way still, and so may ranks that a person has stopped.
    """
    members, services = job.members, job.services
    if hello.attempt >= 0 or hello.restoring >= 0 or members.present():
        return False
    forms = job.phase is Phase.FORMING and members.before is None
    if not (forms or job.phase is Phase.WAITING) or not _has_other_sizes(job, hello):
        return False
    last_s = max((node.heard_s for node in members.nodes.values()), default=0.0)
    return services.clock.monotonic_s() - last_s > services.policy.silent_node_s


def _has_other_sizes(job: JobState, hello: Hello) -> bool:
    world = job.members.world
    other_ranks = bool(world) and hello.nproc_per_node != world[0].nproc
    return other_ranks or WorldSizes.of(hello) != job.resizing.sizes
