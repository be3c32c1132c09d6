"""What a job does about its links: rounds at a stop where evidence suspects them, and when a person asks.

While the job trains nobody's links are measured without a person's word: a transfer at full speed would
slow the step. At a stop the rounds disturb nobody. A node whose port is named leaves the job only if its
links were suspected and another node can take its place. A switch or a path evicts nobody, nor does a port
that is below its own rate but no slower than others: another node would be as slow. Nor does an interface
besides that of the agent's address, which the job may not use.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics.link_search import LEAST_NODES, Culprit
from pulsetrain.recovery import link_checks
from pulsetrain.recovery.faults import Observation
from pulsetrain.recovery.link_checks import BITS_PER_MBIT, LinkOptions, LinkReport
from pulsetrain.recovery.link_suspicion import LinkOutcome, Suspicion, concerned
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.store_host import is_loopback
from pulsetrain.recovery.transitions import TERMINAL, Phase

LIMIT_S = 20.0
"""A job that waits to go on does not wait longer for this."""


def take(job: JobState, present: Sequence[Observation]) -> None:
    """Take the findings that are open. Says once of each suspicion what follows from it."""
    now_s = job.services.clock.monotonic_s()
    for suspicion in job.links.take(present, job.members.world, now_s):
        detail = {"kind": suspicion.kind, "nodes": list(suspicion.nodes), "reason": suspicion.reason}
        if job.services.policy.observe_only:
            job.write("would", {"event": "check_links", **detail})
        else:
            job.write("links_suspected", {**detail, "checked": "at the next stop of the job"})


async def at_a_stop(job: JobState) -> dict[str, str]:
    """Measure the links of a stopped job if something suspects them. Nodes to evict, with the reason."""
    suspicions = job.links.open()
    recovery = job.recovery
    if not suspicions or job.services.policy.observe_only or (recovery is not None and recovery.users_own):
        return {}
    nodes = _nodes(job)
    why_not = _why_not(job, nodes) or _one_machine(nodes)
    if why_not:
        job.write("link_check_skipped", {"reason": why_not})
        return {}
    bits_per_s = job.services.policy.link_check_mbit * BITS_PER_MBIT
    options = LinkOptions(limit_s=LIMIT_S, bits_per_s=bits_per_s)
    report = await measure(job, nodes, options, "controller", suspicions)
    if report.verdict.state == "inconclusive":
        job.links.undecided()
    else:
        job.links.checked()
    return _to_go(job, report, concerned(suspicions, [n.name for n in nodes]))


async def on_request(job: JobState, options: LinkOptions, actor: str) -> LinkReport:
    """Measure the links now, in a person's name. Raises `UsageError` where that cannot be done."""
    if job.phase in (*TERMINAL, Phase.PREEMPTED, Phase.FORMING):
        raise UsageError(f"job {job.name!r} is {job.phase}: its links cannot be measured now")
    nodes = _nodes(job)
    why_not = _why_not(job, nodes)
    if why_not:
        raise UsageError(f"job {job.name!r}: {why_not}")
    return await measure(job, nodes, options, actor, ())


async def measure(
    job: JobState, nodes: Sequence[Node], options: LinkOptions, actor: str, suspicions: Sequence[Suspicion]
) -> LinkReport:
    """Run the rounds, keep what they said, and write it down."""
    job.links.under_way = True
    try:
        report = await link_checks.run(nodes, job.next_id, options, now_s=job.services.clock.monotonic_s)
    finally:
        job.links.under_way = False
    job.links.outcome = LinkOutcome(report=report, at_ns=job.now_ns(), actor=actor)
    why = [suspicion.reason for suspicion in suspicions]
    job.write("link_check", {**report.detail(), "suspected": why}, actor=actor)
    return report


def _nodes(job: JobState) -> list[Node]:
    """Everybody who can be asked. Standbys are good to compare with.

    One that says the address of loopback while others do not has no link that they can measure.
    """
    failed = job.members.failed
    nodes = [
        n for n in (*job.members.active(), *job.members.reserves()) if n.connected and n.name not in failed
    ]
    return [n for n in nodes if not is_loopback(n.hello.address)] or nodes


def _why_not(job: JobState, nodes: Sequence[Node]) -> str:
    if job.links.under_way:
        return "its links are being measured; try again when that is over"
    if len(nodes) < LEAST_NODES:
        return f"{len(nodes)} of its nodes can be asked, and {LEAST_NODES} are needed to compare links"
    return ""


def _one_machine(nodes: Sequence[Node]) -> str:
    """Nodes that share a machine have no link between them. What they send tells how busy it is."""
    machines = len({node.hello.address for node in nodes})
    if machines < LEAST_NODES:
        return f"its nodes are on {machines} machines, and {LEAST_NODES} are needed to compare links"
    return ""


def _to_go(job: JobState, report: LinkReport, suspected: set[str]) -> dict[str, str]:
    """Active nodes that are named and suspected, as many as others can stand in for."""
    members, going = job.members, dict(job.members.failed)
    wanted = [c for c in report.verdict.culprits if c.node in suspected and c.node not in going and c.evicts]
    for culprit in sorted(wanted, key=lambda c: not c.broken):
        active = [n.name for n in members.active()]
        left = [n for n in active if n not in {*going, culprit.node}]
        bad = {*going, *(c.node for c in report.verdict.culprits if c.evicts)}
        spare = [n for n in members.standbys() if n.name not in bad]
        if culprit.node in active and len(left) + len(spare) >= job.resizing.size:
            going[culprit.node] = reason(culprit)
    return {name: why for name, why in going.items() if name not in members.failed}


def reason(culprit: Culprit) -> str:
    """Why a node is to go, in one line.

    >>> reason(Culprit(kind="port", name="b/net", node="b", reason="out: 40% of the usual rate"))
    'links: port b/net: out: 40% of the usual rate'
    """
    return f"links: {culprit.kind} {culprit.name}: {culprit.reason}"
