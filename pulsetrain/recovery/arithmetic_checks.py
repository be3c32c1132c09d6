"""A NaN suspects the arithmetic: the nodes concerned multiply for seconds at the next stop, or at the end.

The cause of a NaN is nearly always the training itself. So nobody is stopped or evicted for one. A node is
evicted only where its own products, whose answer is known, come out wrong.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import ArithmeticCheck, Command, RankExit, Reply, WorldNode
from pulsetrain.recovery.faults import Observation
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.world import node_of

MARGIN_S = 35.0  # for the way of the command, the first product on a GPU, and the reply
_SAYS_NAN = re.compile(r"(?i)\b(nan|nans|non-?finite|not finite)\b")


class CheckedNode(Protocol):
    """A node that can be asked."""

    @property
    def name(self) -> str: ...
    async def ask(self, command: Command, timeout_s: float) -> Reply: ...


@dataclass(frozen=True, kw_only=True)
class ArithmeticReport:
    """`wrong` maps nodes to what they got wrong, `silent` those that gave no answer to the reason."""

    right: Sequence[str] = field(default_factory=tuple)
    wrong: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


async def run(job: JobState, nodes: Sequence[CheckedNode]) -> ArithmeticReport:
    """Let nodes multiply. One that gives no answer is not wrong."""
    seconds = job.services.policy.arithmetic_check_s
    replies = await asyncio.gather(
        *(n.ask(ArithmeticCheck(id=job.next_id(), seconds=seconds), seconds + MARGIN_S) for n in nodes)
    )
    answered = {n.name: r for n, r in zip(nodes, replies, strict=True)}
    silent = {name: r.error for name, r in answered.items() if r.error}
    wrong = {name: told for name, r in answered.items() if not r.error and (told := _wrong(r.data))}
    right = [name for name in answered if name not in silent and name not in wrong]
    return ArithmeticReport(right=right, wrong=wrong, silent=silent)


def _wrong(data: JsonObject) -> str:
    places = data.get("wrong") or {}
    if not places:
        return ""
    where = ", ".join(f"{count} elements on {place}" for place, count in sorted(places.items()))
    return f"wrong products: {where}, of {data.get('products', 0)} products"


def take(job: JobState, present: Iterable[Observation]) -> None:
    """Take the findings that are open. Says once of each NaN what follows from it."""
    for finding in present:
        nodes = _nodes(finding, job.members.world)
        if finding.kind != "nan" or not job.arithmetic.suspect(
            (job.attempt.number, finding.subject_type, finding.subject), nodes, finding.summary
        ):
            continue
        detail = {"kind": "nan", "nodes": nodes, "reason": finding.summary}
        if job.services.policy.observe_only:
            job.write("would", {"event": "check_arithmetic", **detail})
        else:
            job.write("arithmetic_suspected", {**detail, "checked": "at the next stop or end of the job"})


async def at_a_stop(job: JobState) -> dict[str, str]:
    """Check the nodes that are suspected. Those to evict, with the reason."""
    job.arithmetic.right = frozenset()
    reasons = [*job.arithmetic.reasons(), *_said_by(job.attempt.exits)]
    if not reasons or job.services.policy.observe_only:
        return {}
    everybody = [n for n in job.members.active() if n.name not in job.members.failed]
    named = job.arithmetic.nodes()
    if named:
        named |= {exit_.node for exit_ in job.attempt.exits if _ended_on_nan(exit_)}
    nodes = [n for n in everybody if not named or n.name in named]
    report = await run(job, nodes)
    _take_in(job, report)
    job.write(
        "arithmetic_check",
        {
            "nodes": [n.name for n in nodes],
            "wrong": dict(report.wrong),
            "silent": dict(report.silent),
            "suspected": reasons,
        },
    )
    return dict(report.wrong)


async def of_standbys(job: JobState, nodes: Sequence[CheckedNode]) -> dict[str, str]:
    """Check those that were wrong before. Nodes that still are, or gave no answer, with the reason."""
    doubtful = [n for n in nodes if n.name in job.arithmetic.wrong]
    if not doubtful:
        return {}
    report = await run(job, doubtful)
    _take_in(job, report)
    return {**report.silent, **report.wrong}


def _take_in(job: JobState, report: ArithmeticReport) -> None:
    """What a check found. A new hub must not promote a node that was wrong either."""
    before = set(job.arithmetic.wrong)
    job.arithmetic.checked(report, job.now_ns())
    for name in (before & set(report.right)) | report.wrong.keys():
        node = job.members.nodes.get(name)
        if node is None:
            continue
        if name in report.wrong or node.cordon or node.state is NodeState.EVICTED:
            job.remember(node)
        else:
            job.forget(name)


def explains(job: JobState, fault: Fault) -> bool:
    """Whether a NaN ended the rank, and its node's products were right at this stop. It is no fault then."""
    exits = [e for e in job.attempt.exits if (e.node, e.rank) == (fault.node, fault.rank)]
    multiplied = fault.node in job.arithmetic.right and job.services.policy.arithmetic_check_s > 0
    return multiplied and any(map(_ended_on_nan, exits))


def _ended_on_nan(exit_: RankExit) -> bool:
    """Whether a rank ended by itself and said that it saw a NaN. A signal has another cause."""
    return exit_.code > 0 and any(_SAYS_NAN.search(line) for line in exit_.last_lines)


def _said_by(exits: Iterable[RankExit]) -> list[str]:
    """Lines of ranks that ended on a NaN, one for each rank. Such a job may be gone before it is analyzed."""
    said = []
    for exit_ in exits:
        lines = [line for line in exit_.last_lines if _SAYS_NAN.search(line)]
        if exit_.code != 0 and lines:
            said.append(f"rank {exit_.rank} ended with: {lines[-1].strip()[:200]}")
    return said


def _nodes(finding: Observation, world: Sequence[WorldNode]) -> list[str]:
    """The nodes of the ranks that had it first, [] for all."""
    ranks = finding.evidence.get("ranks")
    if finding.subject_type == "rank":
        ranks = [int(finding.subject)]
    known = [r for r in ranks if isinstance(r, int)] if isinstance(ranks, list | tuple) else []
    return sorted({node_of(world, rank) for rank in known} - {""})
