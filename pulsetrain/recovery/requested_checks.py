"""Checks of standbys that a person asks for. Those of nodes that train would disturb their job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics.node_check import LEVELS
from pulsetrain.recovery import standby_care
from pulsetrain.recovery.checks import CheckReport
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase

STORE = "requested checks"
PHASES = (Phase.STARTING, Phase.RUNNING, Phase.WAITING)
"""In others all nodes are checked, or none is the job's to check."""


class NodeResult(TypedDict):
    """One node. `result` is passed, failed, busy, unreached or inconclusive. `reason` says why."""

    node: str
    result: str
    reason: str


class NodesAnswer(TypedDict):
    """What a check found. `finds` is what its level is able to find, `inconclusive` what stays open."""

    job: str
    level: str
    finds: str
    nodes: list[NodeResult]
    inconclusive: str
    seconds: float


async def check(job: JobState, names: Sequence[str], level: str, actor: str) -> NodesAnswer:
    """Check standbys of a job now. One that fails is cordoned, as after the checks that the hub begins.

    Until it is over none of them is promoted. Raises `UsageError` where that cannot be done.
    """
    if level not in LEVELS:
        raise UsageError(f"level = {level!r}: allowed: {', '.join(LEVELS)}")
    if job.phase not in PHASES:
        raise UsageError(f"job {job.name!r} is {job.phase}: its standbys cannot be checked now")
    if level != standby_care.LIGHT and job.phase is Phase.WAITING:
        raise UsageError(f"level = {level!r}: job {job.name!r} waits for a node; allowed now: light")
    nodes = [_standby(job, name) for name in dict.fromkeys(names)]
    for node in nodes:
        node.set_apart = True
    try:
        report = await standby_care.check(job, nodes, level=level, store=STORE, actor=actor)
    finally:
        for node in nodes:
            node.set_apart = False
    return NodesAnswer(
        job=job.name,
        level=level,
        finds=LEVELS[level].finds,
        nodes=[_result(node, report) for node in nodes],
        inconclusive=report.verdict.reason if report.verdict else "",
        seconds=report.seconds,
    )


def _standby(job: JobState, name: str) -> Node:
    """A node that does nothing for its job. Raises `UsageError` for another one."""
    reserves = {node.name: node for node in job.members.reserves() if job.members.may_use(node)}
    node = job.members.nodes.get(name)
    if node is None or name not in reserves:
        what = "is not there" if node is None else f"is {_word(node)}"
        known = ", ".join(sorted(reserves)) or "none"
        raise UsageError(
            f"node {name!r} {what}: only standbys are checked; standbys of {job.name!r}: {known}"
        )
    if node.being_checked:
        raise UsageError(f"node {name!r} is being checked already; try again in a moment")
    return node


def _word(node: Node) -> str:
    if node.state is not NodeState.STANDBY:
        return str(node.state)
    return "used by another job" if node.usable else "not connected"


def _result(node: Node, report: CheckReport) -> NodeResult:
    name = node.name
    if name in report.unreached:
        return NodeResult(node=name, result="unreached", reason=report.unreached[name])
    if name in report.failed:
        return NodeResult(node=name, result="failed", reason=report.failed[name])
    if name in report.busy:
        return NodeResult(node=name, result="busy", reason=standby_care.BUSY)
    if name in report.passed:
        return NodeResult(node=name, result="passed", reason="")
    if report.verdict is None:
        return NodeResult(node=name, result="passed", reason="by itself: no other node could be its partner")
    return NodeResult(node=name, result="inconclusive", reason=report.verdict.reason)
