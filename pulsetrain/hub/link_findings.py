"""Findings on links that rounds of transfers named, for as long as nothing says that they are over.

A finding `bad_link` stays open until other rounds find the link good, its node is gone, or the job is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from pulsetrain.analytics.incidents.locations import SWITCH
from pulsetrain.analytics.verdict import Finding
from pulsetrain.diagnostics.link_search import Culprit
from pulsetrain.recovery.link_suspicion import LinkOutcome
from pulsetrain.recovery.nodes import GONE
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import TERMINAL

SLOW_CONFIDENCE, BROKEN_CONFIDENCE = 0.9, 0.95


def found(job: JobSnapshot) -> list[Finding]:
    """What the last rounds named of a job that goes on, without nodes that are gone."""
    if job.links is None or job.phase in TERMINAL:
        return []
    gone = {node.name for node in job.nodes if node.state in GONE}
    return [_finding(job, job.links, c) for c in job.links.report.verdict.culprits if c.node not in gone]


def _finding(job: JobSnapshot, outcome: LinkOutcome, culprit: Culprit) -> Finding:
    words = "lets nothing through" if culprit.broken else "is slow or loses data"
    verdict = outcome.report.verdict
    return Finding(
        ts_ns=outcome.at_ns,
        job=job.job,
        attempt=job.attempt,
        kind="bad_link",
        subject_type="node" if culprit.kind == "node" else "link",
        subject=f"{SWITCH}{culprit.name}" if culprit.kind == "switch" else culprit.name,
        severity="critical" if culprit.broken else "warning",
        confidence=BROKEN_CONFIDENCE if culprit.broken else SLOW_CONFIDENCE,
        summary=f"{_called(culprit)} {words}: {culprit.reason}",
        evidence={
            "query": "events link_check",
            **culprit.row(),
            "nodes": _nodes(job, culprit),
            "rounds": verdict.rounds,
            "transfers": verdict.transfers,
            "transport": outcome.report.transport.name,
        },
    )


_CALLED = MappingProxyType(
    {
        "node": "The network of node",
        "port": "Port",
        "memory": "The way from port",
        "path": "The path from",
    }
)


def _called(culprit: Culprit) -> str:
    if culprit.kind == "switch":
        return f"The uplink of switch {culprit.name}"
    return _CALLED[culprit.kind] + f" {culprit.name}"


def _nodes(job: JobSnapshot, culprit: Culprit) -> Sequence[str]:
    """The node of a port, those under a switch, or those at both ends of a path."""
    if culprit.node:
        return [culprit.node]
    if culprit.kind == "switch":
        switch = culprit.name.partition("/")[0]
        return sorted(node.name for node in job.nodes if node.hello.switch == switch)
    return sorted({end.partition("/")[0] for end in culprit.name.split(" to ")})
