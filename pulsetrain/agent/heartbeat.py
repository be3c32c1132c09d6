"""What an agent says of its node each second: the heartbeat message, and the same as rows of `heartbeats`."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pulsetrain.protocol.messages import Heartbeat, RankStatus
from pulsetrain.records.columns import Columns


class CpuMeter:
    """Share of one core that this process has used since the last reading."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def ratio(self) -> float:
        """CPU seconds for each wall second since the last call."""
        wall_s, cpu_s = time.monotonic(), time.process_time()
        ratio = (cpu_s - self._cpu_s) / max(wall_s - self._wall_s, 1e-9)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return ratio


def rows(heartbeat: Heartbeat, agent_pid: int) -> Columns:
    """The heartbeat as a batch of `heartbeats`: one row for the node (rank -1), one for each rank."""
    last_step = max((r.last_step for r in heartbeat.ranks), default=-1)
    node = _row(heartbeat, -1, agent_pid, "running", last_step, "", 0)
    ranks = [
        _row(heartbeat, r.rank, r.pid, r.state, r.last_step, r.last_phase, r.phase_age_ns)
        for r in heartbeat.ranks
    ]
    return Columns.from_rows("heartbeats", [node, *ranks])


def _row(
    beat: Heartbeat, rank: int, pid: int, state: str, last_step: int, last_phase: str, phase_age_ns: int
) -> dict[str, object]:
    return {
        "node": beat.node,
        "ts": beat.ts_ns,
        "seq": beat.seq,
        "job": beat.job,
        "attempt": beat.attempt,
        "rank": rank,
        "pid": pid,
        "state": state,
        "last_step": last_step,
        "last_phase": last_phase,
        "phase_age_ns": phase_age_ns,
    }


def last_step(statuses: Iterable[RankStatus]) -> int:
    """The newest step that any of them completed; -1: none."""
    return max((s.last_step for s in statuses), default=-1)
