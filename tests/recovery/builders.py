"""Snapshots, nodes and messages with every field filled, for tests that care about a few of them."""

from __future__ import annotations

from pulsetrain.protocol.messages import Heartbeat, Hello, RankExit, RankStatus, WorldNode
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.snapshot import JobSnapshot, NodeSnapshot
from pulsetrain.recovery.transitions import Phase

S = 1_000_000_000


def hello(node="a", **changes):
    fields = {
        "node": node, "address": "127.0.0.1", "job": "j", "pid": ord(node[0]), "nproc_per_node": 2,
        "nnodes": 2, "max_restarts": 3, "peer_port": 1,
    }  # fmt: skip
    return Hello(**(fields | changes))


def world(*nodes, nproc=2):
    return tuple(
        WorldNode(node=name, node_rank=rank, address="127.0.0.1", peer_port=1, nproc=nproc)
        for rank, name in enumerate(nodes)
    )


def status(rank, **changes):
    fields = {
        "rank": rank, "local_rank": rank % 2, "pid": 100 + rank, "state": "running", "last_step": 5,
        "last_phase": "forward", "phase_age_ns": 0, "progress": 9, "progress_age_ns": 0,
    }  # fmt: skip
    return RankStatus(**(fields | changes))


def heartbeat(node, *ranks, **changes):
    fields = {"node": node, "seq": 1, "ts_ns": 0, "job": "j", "attempt": 0, "ranks": ranks}
    return Heartbeat(**(fields | changes))


def rank_exit(rank, code, **changes):
    fields = {
        "node": "ab"[rank // 2], "ts_ns": 1000 * S, "job": "j", "attempt": 0, "rank": rank, "pid": 100 + rank,
        "code": code, "last_lines": (),
    }  # fmt: skip
    return RankExit(**(fields | changes))


def node_snapshot(name, *ranks, **changes):
    """A node in the world whose heartbeat has just arrived; `ranks` are its rank statuses."""
    fields = {
        "name": name, "state": NodeState.ACTIVE, "reason": "", "hello": hello(name), "connected": True,
        "unsettled": False, "heartbeat": heartbeat(name, *ranks), "heartbeat_age_s": 0.0, "heard_age_s": 0.0,
    }  # fmt: skip
    return NodeSnapshot(**(fields | changes))


def job_snapshot(**changes):
    """Two nodes of two ranks that train; step 5 is done."""
    fields = {
        "job": "j", "nnodes": 2, "phase": Phase.RUNNING, "phase_since_ns": 900 * S, "now_ns": 1000 * S,
        "attempt": 0, "started_ns": 900 * S, "first_step_done": True, "world": world("a", "b"),
        "nodes": (node_snapshot("a", status(0), status(1)), node_snapshot("b", status(2), status(3))),
        "exits": (), "fault": None, "history": (), "failure": "", "ended_by": "",
    }  # fmt: skip
    return JobSnapshot(**(fields | changes))
