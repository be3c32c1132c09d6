"""Jobs and nodes as the JSON that the hub's API shows."""

from __future__ import annotations

from typing import TypedDict

from pulsetrain.protocol.messages import WorldNode
from pulsetrain.recovery import updates
from pulsetrain.recovery.record import RecoveryDetail
from pulsetrain.recovery.resizing import own_devices
from pulsetrain.recovery.resizing_view import ResizingRow, resizing_row
from pulsetrain.recovery.snapshot import JobSnapshot, NodeSnapshot
from pulsetrain.recovery.time_use import TimeUseRow


class NodeRow(TypedDict):
    """One node. `last_heartbeat_age_s` is the time since its agent was last heard.

    `cordon` says why it is not promoted, "" where it may be. `gone_since_ns` (UTC) is when it was lost or
    evicted, 0 where it is neither. `gpus` are the identities of its GPUs.
    """

    node: str
    job: str
    state: str
    connected: bool
    node_rank: int
    ranks: list[int]
    address: str
    pid: int
    last_heartbeat_age_s: float
    reason: str
    cordon: str
    gone_since_ns: int
    gpus: list[dict[str, object]]
    gauges: dict[str, float]


class JobRow(TypedDict):
    """One job with its nodes and recoveries. `devices` are those that its ranks compute on.

    The hub adds the verdict: it has the analyzers. `usual_silence_s` is how old a heartbeat may be by what
    the agents say, 0.0 where they do not say.
    """

    job: str
    state: str
    since_ns: int
    attempt: int
    step: int
    world_size: int
    failure: str
    launches_in_s: float
    pending_hang: dict[str, object] | None
    own_checkpoint: dict[str, object] | None
    move: dict[str, object] | None
    update: dict[str, object] | None
    instrumentation: dict[str, str]
    time_use: TimeUseRow | None
    resizing: ResizingRow | None
    devices: int
    usual_silence_s: float
    nodes: list[NodeRow]
    recoveries: list[RecoveryDetail]


def node_rows(job: JobSnapshot) -> list[NodeRow]:
    """The nodes of a job."""
    members = {member.node: member for member in job.world}
    return [_node_row(job.job, node, members.get(node.name)) for node in job.nodes]


def _node_row(job: str, node: NodeSnapshot, member: WorldNode | None) -> NodeRow:
    return {
        "node": node.name,
        "job": job,
        "state": str(node.state),
        "connected": node.connected,
        "node_rank": member.node_rank if member else -1,
        "ranks": list(member.ranks) if member else [],
        "address": node.hello.address,
        "pid": node.hello.pid,
        "last_heartbeat_age_s": round(node.heard_age_s, 3),
        "reason": node.reason,
        "cordon": node.cordon,
        "gone_since_ns": node.gone_since_ns,
        "gpus": [vars(gpu) for gpu in node.hello.gpus],
        "gauges": dict(node.heartbeat.gauges) if node.heartbeat else {},
    }


def _own_devices(job: JobSnapshot) -> int:
    hellos = {node.name: node.hello for node in job.nodes}
    return sum(own_devices(member, hellos.get(member.node)) for member in job.world)


def job_row(job: JobSnapshot) -> JobRow:
    """One job."""
    return {
        "job": job.job,
        "state": str(job.phase),
        "since_ns": job.phase_since_ns,
        "attempt": job.attempt,
        "step": job.last_step,
        "world_size": job.world_size,
        "failure": job.failure,
        "launches_in_s": round(job.launches_in_s, 1),
        "pending_hang": job.pending_hang.row() if job.pending_hang else None,
        "own_checkpoint": job.own_checkpoint.row(job.now_ns) if job.own_checkpoint else None,
        "move": job.move.row() if job.move else None,
        "update": updates.row(job.updates),
        "instrumentation": dict(job.instrumentation),
        "time_use": job.time_use.row() if job.time_use else None,
        "resizing": resizing_row(job),
        "devices": (job.resizing.devices if job.resizing else 0) or _own_devices(job),
        "usual_silence_s": job.usual_silence_s,
        "nodes": node_rows(job),
        "recoveries": list(job.history),
    }
