"""What an agent says of its node each second: the heartbeat message, and the same as rows of `heartbeats`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol.messages import GpuIdentity, HardwareSign, Heartbeat, Held, RankActivity, RankStatus
from pulsetrain.records.columns import Columns


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """What a heartbeat tells of its node at one moment. See `Heartbeat`."""

    attempt: int
    ranks: tuple[RankStatus, ...]
    held: tuple[Held, ...]
    gauges: Mapping[str, float]
    loops: tuple[LoopStatus, ...]
    activity: tuple[RankActivity, ...] = ()
    hardware: tuple[HardwareSign, ...] = ()
    restoring: int = -1
    stored_attempt: int = -1
    gpus: tuple[GpuIdentity, ...] = ()


class HeartbeatSender:
    """Numbers heartbeats and hands each to every function of `send`. Any thread may call it."""

    def __init__(
        self,
        identity: NodeIdentity,
        read: Callable[[int], NodeState],
        send: Sequence[Callable[[Heartbeat], None]],
    ) -> None:
        self._identity, self._read, self._send = identity, read, send
        self._seq = itertools.count()
        self._cpu = CpuMeter()
        self._lock = threading.Lock()

    def send(self) -> None:
        """Send a heartbeat with the state as of now. Heartbeats of several threads go one after the other."""
        with self._lock:
            now_ns = time.time_ns()
            state = self._read(now_ns)
            heartbeat = Heartbeat(
                node=self._identity.node,
                seq=next(self._seq),
                ts_ns=now_ns,
                job=self._identity.job,
                attempt=state.attempt,
                ranks=state.ranks,
                held=state.held,
                gauges={**state.gauges, "agent_cpu_ratio": self._cpu.ratio()},
                loops=state.loops,
                activity=state.activity,
                hardware=state.hardware,
                restoring=state.restoring,
                stored_attempt=state.stored_attempt,
                gpus=state.gpus,
            )
            for send in self._send:
                send(heartbeat)


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


def rows(heartbeats: Sequence[Heartbeat], agent_pid: int) -> Columns:
    """Heartbeats as a batch of `heartbeats`: one row for the node (rank -1), one for each rank."""
    return Columns.from_rows("heartbeats", [row for each in heartbeats for row in _rows_of(each, agent_pid)])


def _rows_of(heartbeat: Heartbeat, agent_pid: int) -> Iterator[dict[str, object]]:
    of_heartbeat: dict[str, object] = {
        "node": heartbeat.node,
        "ts": heartbeat.ts_ns,
        "seq": heartbeat.seq,
        "job": heartbeat.job,
        "attempt": heartbeat.attempt,
    }
    yield {
        **of_heartbeat,
        "rank": -1,
        "pid": agent_pid,
        "state": "running",
        "last_step": max((r.last_step for r in heartbeat.ranks), default=-1),
        "last_phase": "",
        "phase_age_ns": 0,
    }
    for r in heartbeat.ranks:
        yield {
            **of_heartbeat,
            "rank": r.rank,
            "pid": r.pid,
            "state": r.state,
            "last_step": r.last_step,
            "last_phase": r.last_phase,
            "phase_age_ns": r.phase_age_ns,
        }
