"""Standbys: a light check when one joins, every ten minutes, and at the end of a probation.

A standby under a cordon is not promoted. Its reason ends only once the machine has been clean for a while and
has passed a light check.
"""

from __future__ import annotations

from pulsetrain.diagnostics.node_check import LEVELS
from pulsetrain.recovery import arithmetic_checks, checks, scheduling
from pulsetrain.recovery.memory import NodeMemory
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase

LIGHT = "light"
STORE = "standby checks"
NEW = "it has not passed a light check yet"
PROBATION = "probation: "
AGAIN_S = 30.0  # after a check that failed, or one that could not end a probation


def welcome(job: JobState, node: Node, past: NodeMemory | None) -> None:
    """A node joined. `past` is what the job remembers of it.

    One that the controller evicted serves a probation. One that joins a job that has begun is checked before
    it can be promoted. One that a new hub hears of stays under its cordon, for its whole time anew.
    """
    now_s = job.services.clock.monotonic_s()
    node.checked_s = node.clean_since_s = now_s
    held = job.phase is Phase.PREEMPTED and not job.members.world  # it was not launched yet by this hub
    forming = job.phase is Phase.FORMING or held
    if job.services.policy.observe_only or (forming and (past is None or past.pid != node.hello.pid)):
        return
    if not forming:
        node.cordon, node.checked_s = NEW, float("-inf")
    if past is None:
        return
    if past.cordon:
        node.cordon, node.probation_s = past.cordon, past.probation_s
    elif past.evicted_by == "controller" and not forming:
        node.cordon = f"{PROBATION}it was evicted for {past.evicted}"
        node.probation_s = job.services.policy.probation_s
        job.write("probation", {"reason": past.evicted, "seconds": node.probation_s}, node=node.name)
        job.remember(node)
    elif not forming:
        job.forget(node.name)


_AWAKE = (Phase.FORMING, Phase.STARTING, Phase.RUNNING, Phase.WAITING)
"""Phases in which a check of standbys disturbs no check of the whole job. The devices of a pre-empted job are
somebody else's."""


def take_due(job: JobState) -> list[Node]:
    """The standbys that are to be checked now. They count as checked from now on."""
    policy, now_s = job.services.policy, job.services.clock.monotonic_s()
    if policy.observe_only or job.phase not in _AWAKE:
        return []
    usable = (n for n in job.members.reserves() if job.members.may_use(n))  # others train on the rest
    reserves = [n for n in usable if n.cordon or job.phase is not Phase.FORMING]
    nodes = [n for n in reserves if _due(n, now_s, policy.standby_check_s, job)]
    for node in nodes:
        node.checked_s = now_s
    return nodes


def _due(node: Node, now_s: float, period_s: float, job: JobState) -> bool:
    age_s = now_s - node.checked_s
    if age_s >= period_s:
        return True
    return bool(node.cordon) and age_s >= AGAIN_S and _clean(job, node, now_s)


def _clean(job: JobState, node: Node, now_s: float) -> bool:
    """Whether a node under a cordon has served its probation."""
    return node.name not in job.hardware.open and now_s - node.clean_since_s >= node.probation_s


async def check(job: JobState, nodes: list[Node]) -> None:
    """Run the light check on standbys. One that fails is cordoned, one that passed may be readmitted.

    One that lost its connection meanwhile is checked again when it is back. Its machine has not failed.
    """
    report = await checks.run(nodes, job.services.policy, job.next_id, level=LEVELS[LIGHT], store_job=STORE)
    now_s = job.services.clock.monotonic_s()
    failed = {**report.failed, **await arithmetic_checks.of_standbys(job, nodes)}
    unreached = dict(report.unreached)
    detail = {
        "nodes": [n.name for n in nodes],
        "failed": failed,
        "unreached": unreached,
        "seconds": report.seconds,
    }
    job.write("standby_check", detail)
    for node in nodes:
        if node.name in unreached:
            node.checked_s = float("-inf")
        elif node.name in failed:
            node.cordon = f"light check: {failed[node.name]}"
            node.clean_since_s, node.probation_s = now_s, job.services.policy.probation_s
            job.remember(node)
            job.write("cordon", {"reason": node.cordon, "response": "cordon"}, node=node.name)
        elif node.cordon and _clean(job, node, now_s):
            job.write("uncordon", {"reason": node.cordon}, node=node.name)
            if node.cordon.startswith(PROBATION):
                scheduling.give_back(job, node.name)
            node.cordon = ""
            job.forget(node.name)
