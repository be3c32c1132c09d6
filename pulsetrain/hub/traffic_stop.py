"""A stop of a job's traffic as a hang: where nothing else says that the job stands still. Pure.

MegaScale (arXiv 2402.15627) restarts a job whose RDMA traffic is zero. A healthy job may carry nothing for
minutes, while it saves, evaluates or compiles. So a stop is a hang in two cases. All ranks wait in a
collective, of which the hang analyzer can say nothing: then the network is at fault. Or nothing is recorded
of the program, such as of one that is no Python: then there is no other sign. Where the hang analyzer names
somebody, it knows more, and the stop is only evidence. `HangPatience` decides how long it must last. Where
all ranks wait, that is as long as for any hang of the network. Where nothing is recorded of the program, it
is as long as for a pause: ByteRobust (arXiv 2509.16293) waits ten minutes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pulsetrain.analytics.hangs.broken_links import waits
from pulsetrain.analytics.hangs.condition import BUSY, FROZEN, moves_bytes
from pulsetrain.analytics.verdict import Finding
from pulsetrain.protocol.messages import RankActivity, RankStatus
from pulsetrain.recovery.snapshot import JobSnapshot

SILENT_NS = 10_000_000_000
"""So long each rank must have stood in its collective."""
ON_THE_HOST = ("sleep", "poll", "read", "child")
"""system calls that no device ends"""
CONFIDENCE = 0.7
"""Nobody counted how often a stop of traffic is a hang."""


def stopped_for_s(job: JobSnapshot) -> float:
    """For how long no node of the job's world has carried its traffic. 0 where one does or cannot tell."""
    reporting = job.reporting()
    if not job.world or len(reporting) < len(job.world):
        return 0.0
    longest_s = float("inf")
    for _, heartbeat in reporting:
        longest_s = min(longest_s, heartbeat.gauges.get("traffic_stopped_s", 0.0))
        if longest_s <= 0:  # the first of thousands, several times a second
            return 0.0
    return longest_s


def with_evidence(job: JobSnapshot, seen: Sequence[Finding], usual_ns: int = 0) -> list[Finding]:
    """The findings, hangs with `traffic_stopped_s` as evidence, and with a hang that only traffic shows.

    `usual_ns` is the longest silence that the job survived.
    """
    stopped_s = stopped_for_s(job)
    hangs = [f for f in seen if f.kind == "hang"]
    alone = find(job, usual_ns) if not hangs else None
    told = [
        replace(f, evidence={**f.evidence, "traffic_stopped_s": stopped_s})
        if f.kind == "hang" and stopped_s > 0
        else f
        for f in seen
    ]
    return [*told, alone] if alone is not None else told


def find(job: JobSnapshot, usual_ns: int = 0) -> Finding | None:
    """A finding of kind `hang` on a job whose ranks all wait, or of which nothing is recorded.

    None where its traffic flows or is not known, where a rank reads, writes, has children that compute or is
    debugged, or where one is known to do something else than to wait.
    """
    stopped_s = stopped_for_s(job)
    if stopped_s <= 0:
        return None
    reporting, statuses = job.reporting(), list(job.statuses())
    recorded = any(status.progress for status in statuses)
    if recorded and not _all_wait(job, statuses):
        return None
    activity = [a for _, heartbeat in reporting for a in heartbeat.activity]
    if any(moves_bytes(a) or a.traced or a.helper_cpu_ratio >= BUSY for a in activity):
        return None
    if not recorded and any(a.cpu_ratio >= BUSY for a in activity):
        return None
    if any(g.op and g.on_device for s in statuses for g in s.groups) and any(map(_may_not_wait, activity)):
        return None
    usual = sum(heartbeat.gauges.get("traffic_bytes_per_s", 0.0) for _, heartbeat in reporting)
    where = ", and every rank waits in a collective" if recorded else ""
    return Finding(
        ts_ns=job.now_ns,
        job=job.job,
        attempt=job.attempt,
        kind="hang",
        subject_type="job",
        subject=job.job,
        severity="critical",
        confidence=CONFIDENCE,
        summary=f"The job hangs: no port has carried its traffic for {stopped_s:.0f} s{where}",
        evidence={
            "query": "heartbeats traffic_stopped_s",
            "class": "network",
            "certain": False,
            "condition": "network" if recorded else "unknown",
            "condition_why": "no port carries traffic",
            "condition_ns": int(stopped_s * 1e9),
            "place": "",
            "usual_ns": usual_ns,
            "stall_ns": int(stopped_s * 1e9),
            "traffic_stopped_s": stopped_s,
            "usual_bytes_per_s": usual,
            "nodes": sorted(node.name for node, _ in reporting),
            "culprits": [],
            "victims": [],
        },
    )


def _may_not_wait(activity: RankActivity) -> bool:
    """Whether a rank, whose operations on a device are shown until it looks, may do something on the host.

    `watch.hang` reads the stacks of such ranks, and names them where they wait for the device.
    """
    return activity.cpu_ratio >= BUSY or activity.waits_in in ON_THE_HOST


def _all_wait(job: JobSnapshot, statuses: Sequence[RankStatus]) -> bool:
    """Whether every rank of the world has been in a collective for long."""
    size = sum(node.nproc for node in job.world)
    still = [s for s in statuses if waits(s) and s.progress_age_ns >= SILENT_NS and s.state not in FROZEN]
    return len(still) == len(statuses) == size
