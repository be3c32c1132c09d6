"""One rank as the JSON that the hub's API shows: what the last heartbeat of its node says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import GroupStatus, Heartbeat, RankStatus
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.world import node_of

MOST_RUNS = 64
"""Runs of members that are sent of a group. Nearly every group is one run."""


class GroupRow(TypedDict):
    """One process group of a rank, and its oldest operation in flight.

    `runs` are the members as first rank, distance and number, `size` counts all. `enqueued` and `completed`
    are sequence numbers of collectives. `op` is "" for none in flight. `peer` is the other rank of a send or
    recv, -1 for a collective. `op_since_ns` is UTC by the hub's clock, 0 where nothing is in flight.
    """

    group: str
    size: int
    runs: list[tuple[int, int, int]]
    enqueued: int
    completed: int
    op: str
    op_seq: int
    op_bytes: int
    op_since_ns: int
    peer: int
    timeout_s: int


class RankRow(TypedDict):
    """One rank. `heard_ns` is when the last heartbeat of its node came, UTC by the hub's clock.

    0: none has come in this attempt, and the rest is empty.
    """

    job: str
    attempt: int
    rank: int
    node: str
    heard_ns: int
    state: str
    last_step: int
    last_phase: str
    groups: list[GroupRow]


def rank_of(job: JobState, rank: int) -> RankRow:
    """What is known of a rank of this attempt. Raises `UsageError` for one that is not in the world."""
    name = node_of(job.members.world, rank)
    if not name:
        size = job.members.world_size
        allowed = f"0 to {size - 1}" if size else "none before the job is launched"
        raise UsageError(f"rank = {rank}: allowed: {allowed}")
    node, attempt = job.members.nodes.get(name), job.attempt.number
    heartbeat, heard_ns = None, 0
    if node is not None and node.heartbeat is not None and node.heartbeat.attempt == attempt:
        heartbeat = node.heartbeat
        heard_ns = job.now_ns() - int((job.services.clock.monotonic_s() - node.heartbeat_s) * 1e9)
    return rank_row(job.name, attempt, rank, name, heartbeat, heard_ns)


def rank_row(
    job: str, attempt: int, rank: int, node: str, heartbeat: Heartbeat | None, heard_ns: int
) -> RankRow:
    """What `heartbeat`, which came at `heard_ns`, says of a rank of its node."""
    status = _status(heartbeat, rank)
    return {
        "job": job,
        "attempt": attempt,
        "rank": rank,
        "node": node,
        "heard_ns": heard_ns if status else 0,
        "state": status.state if status else "",
        "last_step": status.last_step if status else -1,
        "last_phase": status.last_phase if status else "",
        "groups": [_group_row(group, heard_ns) for group in status.groups] if status else [],
    }


def _status(heartbeat: Heartbeat | None, rank: int) -> RankStatus | None:
    return next((s for s in heartbeat.ranks if s.rank == rank), None) if heartbeat is not None else None


def _group_row(group: GroupStatus, heard_ns: int) -> GroupRow:
    return {
        "group": group.group,
        "size": len(group.members),
        "runs": runs(group.members),
        "enqueued": group.enqueued,
        "completed": group.completed,
        "op": group.op,
        "op_seq": group.op_seq,
        "op_bytes": group.op_bytes,
        "op_since_ns": heard_ns - group.op_age_ns if group.op else 0,
        "peer": group.peer,
        "timeout_s": group.timeout_s,
    }


def runs(members: Sequence[int], most: int = MOST_RUNS) -> list[tuple[int, int, int]]:
    """Ranks as runs that are evenly spaced: first, distance, number. Only the first `most` runs.

    >>> runs([0, 8, 16, 24]), runs([5]), runs([0, 1, 2, 9])
    ([(0, 8, 4)], [(5, 1, 1)], [(0, 1, 3), (9, 1, 1)])
    """
    ranks = sorted(members)
    if (distance := _distance(ranks)) > 0:
        return [(ranks[0], distance, len(ranks))]
    found: list[tuple[int, int, int]] = []
    for rank in ranks:
        first, distance, count = found[-1] if found else (0, 0, 0)
        if count == 1 and rank > first:
            found[-1] = (first, rank - first, 2)
        elif count > 1 and rank == first + distance * count:
            found[-1] = (first, distance, count + 1)
        elif len(found) == most:
            break
        else:
            found.append((rank, 1, 1))
    return found


def _distance(ranks: Sequence[int]) -> int:
    """The distance between neighbours where it is the same between all, else 0."""
    if len(ranks) < 2:
        return 0
    first, distance, end = ranks[0], ranks[1] - ranks[0], ranks[-1] + 1
    if distance < 1 or first + distance * len(ranks) != end - 1 + distance:
        return 0
    return distance if ranks == list(range(first, end, distance)) else 0
