"""Stand-ins for what an agent works with: ranks, zygote, checkpoints, recorder."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.core.errors import ProgramRefused, Unavailable, UsageError
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol.messages import (
    Heartbeat,
    Held,
    ProgramUpdate,
    RankExit,
    RankStatus,
    Start,
    ranks_of_node,
)

IDENTITY = NodeIdentity(job="job", node="a", address="127.0.0.1", nproc_per_node=2, nnodes=1)
LOOP = LoopStatus(
    name="fake", turns=1, failures=0, failures_in_a_row=0, last_error="", age_s=0.0, stale=False
)


@dataclass
class FakeRank:
    """A rank without a process."""

    rank: int
    attempt: int
    code: int | None = None
    last_lines: tuple[str, ...] = ()
    ring_fd: int = -1
    reports_fail: int = 0

    @property
    def pid(self) -> int:
        return 1000 + self.rank

    def status(self) -> RankStatus:
        return RankStatus(
            rank=self.rank,
            local_rank=self.rank,
            pid=self.pid,
            state="running" if self.code is None else "gone",
            last_step=0,
            last_phase="",
            phase_age_ns=0,
            progress=1,
            progress_age_ns=1,
        )

    def report(self, identity: NodeIdentity, now_ns: int) -> RankExit:
        if self.reports_fail:
            self.reports_fail -= 1
            raise OSError("log folder is gone")
        assert self.code is not None
        return RankExit(
            node=identity.node,
            ts_ns=now_ns,
            job=identity.job,
            attempt=self.attempt,
            rank=self.rank,
            pid=self.pid,
            code=self.code,
            last_lines=self.last_lines,
        )


class FakeRanks:
    """Ranks that end when the test says so."""

    def __init__(self, on_exit: Callable[[Any], None]) -> None:
        self.on_exit = on_exit
        self.all: tuple[FakeRank, ...] = ()
        self.stuck = False
        self.graces: list[float] = []
        self.told_to_end: list[int] = []
        self.forwarded: list[int] = []
        self.kept: list[int] = []
        self.not_kept: dict[int, str] = {}
        self.asked_to_keep: list[tuple[tuple[int, ...], float]] = []
        self.dropped = self.parked = 0
        self.devices = io.BytesIO()  # something that can be closed
        self.lacks_program = ""

    def forward(self, signum: int) -> None:
        self.forwarded.append(signum)

    def refuse_update(self, update: ProgramUpdate) -> None:
        if update.number and self.lacks_program:
            raise ProgramRefused(self.lacks_program)

    def look_at_devices(self, *, stepped: bool) -> None:
        pass

    def share(
        self, devices: int, timeout_s: float, *, dry_run: bool = False
    ) -> tuple[dict[int, int], list[int]]:
        if devices < 1:
            raise UsageError(f"devices = {devices}: allowed: 1 to 2")
        return {rank.rank: rank.rank % devices for rank in self.all}, []

    @property
    def alive(self) -> tuple[FakeRank, ...]:
        return tuple(r for r in self.all if r.code is None)

    @property
    def attempt(self) -> int:
        return self.all[0].attempt if self.all else -1

    def spawn(self, zygote: object, start: Start, arenas: Mapping[int, int]) -> None:
        assert set(arenas) == set(ranks_of_node(start.node_rank, IDENTITY.nproc_per_node))
        self.all = tuple(FakeRank(rank, start.attempt) for rank in sorted(arenas))

    def stop(self, zygote: object, grace_s: float, signum: int = signal.SIGTERM) -> None:
        self.graces.append(grace_s)
        self.told_to_end.append(signum)
        if self.stuck:
            raise Unavailable("rank 0 (pid 1000) did not end 5 s after SIGKILL")
        for rank in self.alive:
            rank.code = -9

    def keep(self, zygote: object, fresh: Sequence[int], timeout_s: float, given_up: object) -> None:
        self.asked_to_keep.append((tuple(fresh), timeout_s))
        self.not_kept = {rank.rank: "it is at fault" for rank in self.all if rank.rank in fresh}
        self.parked = len(self.all) - len(self.not_kept)

    def drop_kept(self, zygote: object) -> None:
        self.dropped += 1

    def end(self, rank: FakeRank, code: int) -> None:
        rank.code = code
        self.on_exit(rank)

    def close(self) -> None:
        self.all = ()


class FakeZygote:
    """Answers calls with what the test put into `results`, or raises it."""

    def __init__(self) -> None:
        self.ready, self.dead, self.closed = True, False, False
        self.loop, self.pid = LOOP, 7
        self.results: dict[str, object] = {}
        self.calls: list[tuple[str, Mapping[str, object], float]] = []
        self.signals: list[tuple[int, int]] = []
        self.served = 0

    def wait_ready(self, timeout_s: float) -> object:
        if not self.ready:
            raise Unavailable("zygote: imports not done")
        return {}

    def call(self, target: str, kwargs: Mapping[str, object], timeout_s: float) -> object:
        self.calls.append((target, kwargs, timeout_s))
        result = self.results[target.rpartition(".")[2]]
        if isinstance(result, Exception):
            raise result
        return result

    def serve(self, target: str, kwargs: Mapping[str, object], timeout_s: float) -> tuple[int, object]:
        self.served += 1
        return 500 + self.served, {"port": 9000 + self.served}

    def signal(self, pid: int, signum: int) -> None:
        self.signals.append((pid, signum))

    def close(self) -> None:
        self.closed = True


class FakeZygotes:
    """One zygote, replaced when it is dead."""

    def __init__(self) -> None:
        self.current = FakeZygote()

    def replace_dead(self) -> bool:
        dead = self.current.dead
        if dead:
            self.current = FakeZygote()
        return dead

    def close(self) -> None:
        self.current.close()


class FakeCheckpoints:
    """Keeps no state; notes what it is told."""

    peer_port = 4711

    def __init__(self) -> None:
        self.attached: dict[int, int] = {}
        self.cleared = 0
        self.loads: list[tuple[int, int, str]] = []
        self.save_from_step = -1
        self.persisted_for_s: list[float] = []
        self.finished = 0
        self.load_error: Exception | None = None
        self.resharded: list[tuple[tuple[int, ...], dict[str, str]]] = []
        self.refusals: dict[int, str] = {}
        self.retired: dict[int, int] = {}
        self.keeps_retired = False
        self.world: tuple[object, ...] = ()

    def attach(self, rank: int, arena_fd: int) -> None:
        os.fstat(arena_fd)
        self.attached[rank] = arena_fd

    def detach(self, rank: int) -> None:
        os.fstat(self.attached.pop(rank))

    def clear(self) -> None:
        self.cleared += 1

    def set_world(
        self, world: Any, node_rank: int, attempt: int, key: str = "", holders: Any = (), run: str = ""
    ) -> None:
        self.world, self.holders = (world, node_rank, attempt), holders

    def load(self, rank: int, step: int, source: str, *saved: int) -> int:
        del saved
        if self.load_error is not None:
            raise self.load_error
        self.loads.append((rank, step, source))
        return 5

    def reshard(self, ranks: Sequence[int], start: Start) -> int:
        if self.load_error is not None:
            raise self.load_error
        self.resharded.append((tuple(ranks), dict(start.shards)))
        return 7

    def not_reshardable(self, rank: int) -> str:
        return self.refusals.get(rank, "")

    def retire(self, rank: int, arena_fd: int) -> None:
        self.detach(rank)
        if self.keeps_retired:
            self.retired[rank] = arena_fd
        else:
            os.close(arena_fd)

    def reclaim(self, rank: int) -> int:
        return self.retired.pop(rank, -1)

    def follow(self, rings: Mapping[int, int]) -> None: ...

    def save_from(self, step: int) -> None:
        self.save_from_step = step

    persists = False

    def persist_newest(self, timeout_s: float) -> int:
        self.persisted_for_s.append(timeout_s)
        return 3

    def finish_persisting(self) -> bool:
        self.finished += 1
        return True

    stored_attempt = -1

    def held(self) -> tuple[Held, ...]:
        return (Held(rank=0, step=3, tier="memory"),)


@dataclass
class FakeRecorder:
    """Notes what it is told."""

    heartbeats: list[Heartbeat] = field(default_factory=list)
    followed: list[tuple[int, ...]] = field(default_factory=list)
    drains: int = 0
    fails: int = 0

    def gauges(self) -> Mapping[str, float]:
        if self.fails:
            self.fails -= 1
            raise OSError("no spool")
        return {"spool_bytes": 0.0}

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats.append(heartbeat)

    def follow(self, ranks: Sequence[FakeRank]) -> None:
        self.followed.append(tuple(rank.rank for rank in ranks))

    def drain(self) -> None:
        self.drains += 1
