"""A stop of a job's traffic as a hang: where nothing else says that the job stands still. Pure.

MegaScale (arXiv 2402.15627) restarts a job whose RDMA traffic is zero. A program of which nothing is
recorded, such as one that is no Python, has no other sign. Of all others the hang analyzer knows more, and a
stop of their traffic is only evidence. `HangPatience` decides how long it must last, as for every hang that
may be a pause: ByteRobust (arXiv 2509.16293) waits ten minutes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pulsetrain.analytics.hangs.condition import moves_bytes
from pulsetrain.analytics.verdict import Finding
from pulsetrain.recovery.snapshot import JobSnapshot

CONFIDENCE = 0.7
"""Nobody counted how often a stop of traffic is a hang."""


def stopped_for_s(job: JobSnapshot) -> float:
    """For how long no node of the job's world has carried its traffic. 0 where one does or cannot tell."""
    reporting = job.reporting()
    if not job.world or len(reporting) < len(job.world):
        return 0.0
    return min(heartbeat.gauges.get("traffic_stopped_s", 0.0) for _, heartbeat in reporting)


def with_evidence(job: JobSnapshot, seen: Sequence[Finding]) -> list[Finding]:
    """The findings, hangs with `traffic_stopped_s` as evidence, and with a hang that only traffic shows."""
    stopped_s = stopped_for_s(job)
    hangs = [f for f in seen if f.kind == "hang"]
    alone = find(job) if not hangs else None
    told = [
        replace(f, evidence={**f.evidence, "traffic_stopped_s": stopped_s})
        if f.kind == "hang" and stopped_s > 0
        else f
        for f in seen
    ]
    return [*told, alone] if alone is not None else told


def find(job: JobSnapshot) -> Finding | None:
    """A finding of kind `hang` on a job of which nothing is recorded. None where its traffic flows or is not
    known, or where a rank reads, writes or is debugged."""
    reporting, stopped_s = job.reporting(), stopped_for_s(job)
    if stopped_s <= 0 or any(status.progress for status in job.statuses()):
        return None
    activity = [a for _, heartbeat in reporting for a in heartbeat.activity]
    if any(moves_bytes(a) or a.traced for a in activity):
        return None
    usual = sum(heartbeat.gauges.get("traffic_bytes_per_s", 0.0) for _, heartbeat in reporting)
    return Finding(
        ts_ns=job.now_ns,
        job=job.job,
        attempt=job.attempt,
        kind="hang",
        subject_type="job",
        subject=job.job,
        severity="critical",
        confidence=CONFIDENCE,
        summary=f"The job hangs: no port has carried its traffic for {stopped_s:.0f} s",
        evidence={
            "query": "heartbeats traffic_stopped_s",
            "class": "network",
            "certain": False,
            "condition": "unknown",
            "condition_why": "no port carries traffic",
            "condition_ns": int(stopped_s * 1e9),
            "place": "",
            "stall_ns": int(stopped_s * 1e9),
            "usual_bytes_per_s": usual,
            "nodes": sorted(node.name for node, _ in reporting),
            "culprits": [],
            "victims": [],
        },
    )
