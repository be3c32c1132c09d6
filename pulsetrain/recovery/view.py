"""Jobs and nodes as the JSON that the hub's API shows."""

from __future__ import annotations

from typing import Any

from pulsetrain.recovery.job import Job
from pulsetrain.recovery.nodes import Node


def node_row(job: Job, node: Node, now_s: float) -> dict[str, Any]:
    """One node; `last_heartbeat_age_s` is the time since its agent was last heard."""
    place = next((p for p in job.world if p.node == node.name), None)
    return {
        "node": node.name,
        "job": job.name,
        "state": str(node.state),
        "connected": node.connected,
        "node_rank": place.node_rank if place else -1,
        "ranks": list(place.ranks) if place else [],
        "address": node.hello.address,
        "pid": node.hello.pid,
        "last_heartbeat_age_s": round(now_s - node.heard_s, 3),
        "reason": node.reason,
        "gauges": dict(node.heartbeat.gauges) if node.heartbeat else {},
    }


def job_row(job: Job, now_s: float) -> dict[str, Any]:
    """One job with its nodes and recoveries; the verdict is added by the hub, which has the analyzers."""
    return {
        "job": job.name,
        "state": str(job.phase),
        "since_ns": job.phase_since_ns,
        "attempt": job.attempt,
        "step": job.last_step,
        "world_size": job.world_size,
        "failure": job.failure,
        "nodes": [node_row(job, n, now_s) for n in job.nodes.values()],
        "recoveries": job.history,
    }
