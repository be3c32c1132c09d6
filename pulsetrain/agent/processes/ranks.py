"""The ranks of one node: spawn them through the zygote, see them end, end them, read what they did last."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from pulsetrain.agent.output import last_lines
from pulsetrain.agent.processes.zygote import Mode, Zygote
from pulsetrain.collectors.machine.host import process_state
from pulsetrain.collectors.machine.tail import Tail
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.messages import RankExit, RankStatus, Start, ranks_of_node
from pulsetrain.records.columns import Columns

log = structlog.get_logger()

LAST_LINES = 20
KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every rank runs. `argv[0]` is a script's path, a module's name or a program."""

    argv: tuple[str, ...]
    mode: Mode = "script"
    cwd: Path = field(default_factory=Path.cwd)
    role: str = "default"


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """Who this node is to its job."""

    job: str
    node: str
    address: str
    nproc_per_node: int
    max_restarts: int = 3


def rank_environment(
    start: Start, identity: NodeIdentity, local_rank: int, role: str = "default"
) -> dict[str, str]:
    """torchrun's variables for one rank of an attempt, and Pulsetrain's own."""
    nproc = identity.nproc_per_node
    rank = ranks_of_node(start.node_rank, nproc)[local_rank]
    world_size = sum(place.nproc for place in start.world)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(start.node_rank),
        "GROUP_WORLD_SIZE": str(len(start.world)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": role,
        "MASTER_ADDR": start.store_address,
        "MASTER_PORT": str(start.store_port),
        "TORCHELASTIC_RUN_ID": start.job,
        "TORCHELASTIC_RESTART_COUNT": str(start.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(identity.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "PULSETRAIN_JOB": start.job,
        "PULSETRAIN_NODE": identity.node,
        "PULSETRAIN_ATTEMPT": str(start.attempt),
        "PULSETRAIN_RESTORE_STEP": str(start.restore_step),
        "PULSETRAIN_ADDRESS": identity.address,
    }


@dataclass(kw_only=True)
class Rank:
    """One rank of one attempt. `code` is None while it lives; `wanted` once we are ending it ourselves."""

    rank: int
    local_rank: int
    attempt: int
    drain: Drain
    tails: tuple[Tail, ...]
    ring_fd: int
    out: Path
    err: Path
    pid: int = -1
    code: int | None = None
    wanted: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def status(self, now_ns: int) -> RankStatus:
        """Its status page, with the process's state as /proc has it."""
        state = "gone" if self.code is not None else process_state(self.pid, Path("/"))
        with self.lock:
            return self.drain.status(self.pid, state, now_ns)

    def batches(self, now_ns: int) -> list[Columns]:
        """What it recorded and printed since the last call."""
        ended = self.code is not None
        with self.lock:
            printed = [tail.poll(now_ns, final=ended) for tail in self.tails]
            recorded = self.drain.batches(now_ns, final=ended)
        return [*recorded, *(batch for batch in printed if batch is not None)]

    def report(self, identity: NodeIdentity, now_ns: int) -> RankExit:
        """How it ended."""
        assert self.code is not None
        return RankExit(
            node=identity.node,
            ts_ns=now_ns,
            job=identity.job,
            attempt=self.attempt,
            rank=self.rank,
            pid=self.pid,
            code=self.code,
            last_lines=last_lines(self.err, LAST_LINES),
        )


class Ranks:
    """The present attempt's ranks. `on_exit` runs on the zygote's thread for one that ended unasked."""

    def __init__(
        self,
        identity: NodeIdentity,
        program: Program,
        log_dir: Path,
        on_exit: Callable[[Rank], None],
        *,
        ring_slots: int = 65536,
    ) -> None:
        self._identity, self._program = identity, program
        self._log_dir = log_dir
        self._on_exit = on_exit
        self._ring_slots = ring_slots
        self.all: tuple[Rank, ...] = ()

    @property
    def alive(self) -> tuple[Rank, ...]:
        return tuple(r for r in self.all if r.code is None)

    @property
    def attempt(self) -> int:
        """Attempt of the ranks that are there, ended or not; -1: none."""
        return self.all[0].attempt if self.all else -1

    def spawn(self, zygote: Zygote, start: Start, arenas: Mapping[int, int]) -> None:
        """Launch every rank of this node, each with a new ring and the arena of its global rank.

        No rank of an earlier attempt may be left. Raises `Unavailable` where one cannot be forked; the others
        are then ended.
        """
        folder = self._log_dir / f"attempt_{start.attempt}"
        with contextlib.suppress(OSError):  # the files then fall back to nothing
            folder.mkdir(parents=True, exist_ok=True)
        fresh = [self._prepare(start, local, folder) for local in range(self._identity.nproc_per_node)]
        self._drop_rings()
        self.all = tuple(fresh)
        try:
            for rank in fresh:
                self._fork(zygote, rank, start, arenas)
        except Unavailable:
            for rank in fresh:
                if rank.pid < 0:
                    rank.code = -signal.SIGKILL
                    rank.ended.set()
            self.stop(zygote, grace_s=0)
            raise

    def stop(self, zygote: Zygote, grace_s: float) -> None:
        """End every rank: SIGTERM and SIGCONT, SIGKILL after `grace_s`. Returns once none is left; raises
        `Unavailable` where one does not die of SIGKILL in 5 s (it hangs in the kernel)."""
        alive = self.alive
        for rank in alive:
            rank.wanted = True
        if grace_s > 0:
            for signum in (signal.SIGTERM, signal.SIGCONT):
                _send(zygote, alive, signum)
            _wait(alive, grace_s)
        _send(zygote, self.alive, signal.SIGKILL)
        left = _wait(alive, KILL_TIMEOUT_S)
        if left:
            names = ", ".join(f"rank {r.rank} (pid {r.pid})" for r in left)
            raise Unavailable(f"{names} did not end {KILL_TIMEOUT_S:g} s after SIGKILL")

    def close(self) -> None:
        """Let go of the rings."""
        self._drop_rings()
        self.all = ()

    def _prepare(self, start: Start, local_rank: int, folder: Path) -> Rank:
        identity = self._identity
        rank = ranks_of_node(start.node_rank, identity.nproc_per_node)[local_rank]
        ring_fd = create_ring(self._ring_slots)
        files = {"stdout": folder / f"rank_{rank}.out", "stderr": folder / f"rank_{rank}.err"}
        where: Any = {"job": identity.job, "attempt": start.attempt, "node": identity.node, "rank": rank}
        return Rank(
            rank=rank,
            local_rank=local_rank,
            attempt=start.attempt,
            drain=Drain(RingReader(ring_fd), local_rank=local_rank, address=identity.address, **where),
            tails=tuple(Tail(path, source=source, **where) for source, path in files.items()),
            ring_fd=ring_fd,
            out=files["stdout"],
            err=files["stderr"],
        )

    def _fork(self, zygote: Zygote, rank: Rank, start: Start, arenas: Mapping[int, int]) -> None:
        out, err = _open_log(rank.out), _open_log(rank.err)
        try:
            rank.pid = zygote.spawn(
                argv=self._program.argv,
                mode=self._program.mode,
                env=rank_environment(start, self._identity, rank.local_rank, self._program.role),
                cwd=self._program.cwd,
                stdout=out,
                stderr=err,
                fds={"PULSETRAIN_RING_FD": rank.ring_fd, "PULSETRAIN_ARENA_FD": arenas[rank.rank]},
                on_exit=lambda code: self._ended(rank, code),
            )
        finally:
            os.close(out)
            os.close(err)

    def _ended(self, rank: Rank, code: int) -> None:
        rank.code = code
        rank.ended.set()
        if not rank.wanted:
            self._on_exit(rank)

    def _drop_rings(self) -> None:
        for rank in self.all:
            os.close(rank.ring_fd)


def _open_log(path: Path) -> int:
    """The file to write to; nowhere, where a full or broken disk does not let it be made: ranks run all the
    same."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        log.warning("output_lost", path=str(path), error=error.strerror)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _send(zygote: Zygote, ranks: Iterable[Rank], signum: int) -> None:
    for rank in ranks:
        if rank.pid > 0:
            zygote.signal(rank.pid, signum)


def _wait(ranks: Iterable[Rank], timeout_s: float) -> list[Rank]:
    """Those that have not ended after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    return [r for r in ranks if not r.ended.wait(max(0.0, deadline - time.monotonic()))]
