"""The ranks of one node: spawn them through the zygote, see them end, end them, read what they did last."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from pulsetrain.agent.output import last_lines
from pulsetrain.agent.processes.devices import SharedDevices
from pulsetrain.agent.processes.process_images import Manifest, ProcessImages, ring_of
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.processes.zygote_protocol import Mode, RankProcess
from pulsetrain.collectors.machine.host import process_state
from pulsetrain.collectors.machine.tail import Tail
from pulsetrain.collectors.rank import known_files
from pulsetrain.collectors.rank.device_hooks import DEVICES_FD
from pulsetrain.collectors.rank.profile import VARIABLE as PROFILE
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.device_words import DeviceWords
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.position import RankPosition
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.core.errors import Unavailable, UsageError
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
    """Who this node is to its job. 0 for `min_nnodes`: as many as `nnodes`.

    The ranks take turns on so many `devices`, unless the hub wants another number. 0: each has one.
    """

    job: str
    node: str
    address: str
    nproc_per_node: int
    nnodes: int = 1
    min_nnodes: int = 0
    node_unit: int = 1
    max_restarts: int = 3
    standby: bool = False
    switch: str = ""
    devices: int = 0
    tier: str = "standard"


def rank_environment(
    start: Start, identity: NodeIdentity, local_rank: int, role: str = "default"
) -> dict[str, str]:
    """torchrun's variables for one rank of an attempt, and Pulsetrain's own."""
    nproc = identity.nproc_per_node
    rank = ranks_of_node(start.node_rank, nproc)[local_rank]
    world_size = sum(node.nproc for node in start.world)
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
        known_files.OWN_CHECKPOINTS: known_files.encode(start.own_checkpoints),
    }


@dataclass(kw_only=True)
class Rank:
    """One rank of one attempt.

    `code` is None while the process lives. `stopping` is true once the agent itself ends the rank.
    """

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
    stopping: bool = False
    dumped: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def status(self, now_ns: int) -> RankStatus:
        """The rank's status page, with the state of its process from /proc."""
        state = "gone" if self.code is not None else process_state(self.pid, Path("/"))
        if self.dumped and state != "gone":
            state = "sleeping"  # whoever dumps it has stopped it
        with self.lock:
            return self.drain.status(self.pid, state, now_ns)

    @property
    def profile_prefix(self) -> str:
        """Where its profiles are written, without number and suffix."""
        return str(self.out.with_suffix(".profile"))

    @property
    def device(self) -> DeviceWords:
        """Which device it takes turns on."""
        return self.drain.device

    @property
    def coordinates(self) -> Mapping[str, int] | None:
        """Its coordinates by axis, None until it has set them."""
        return self.drain.coordinates

    def ask_for_profile(self, number: int, first_step: int, steps: int) -> None:
        """Ask it to profile `steps` steps from `first_step` on."""
        with self.lock:
            self.drain.ask_for_profile(number, first_step, steps)

    def profile_number(self) -> int:
        """Number of the profile that it was asked for last, 0 for none."""
        with self.lock:
            return self.drain.profile_number

    def profiled(self) -> int:
        """Number of its last profile, negative where it failed."""
        with self.lock:
            return self.drain.profiled

    def hold(self, number: int, past: int, until_ns: int, saved_step: int = -1) -> None:
        """Ask it to stand still after a step. See `RingReader.hold`."""
        with self.lock:
            self.drain.hold(number, past, until_ns, saved_step)

    @property
    def stands(self) -> bool:
        """Whether it stands still."""
        with self.lock:
            return self.drain.stands

    @property
    def standing_number(self) -> tuple[int, int]:
        """The number of the hold that it was asked for, and the arrivals that it may pass."""
        with self.lock:
            return self.drain.asked_hold

    def position(self) -> RankPosition:
        """How many operations it has entered, and whether it stands still."""
        with self.lock:
            return self.drain.position()

    def batches(self, now_ns: int) -> list[Columns]:
        """What the rank recorded and printed since the last call."""
        ended = self.code is not None
        with self.lock:
            printed = [tail.poll(now_ns, final=ended) for tail in self.tails]
            recorded = self.drain.batches(now_ns, final=ended)
        return [*recorded, *(batch for batch in printed if batch is not None)]

    def report(self, identity: NodeIdentity, now_ns: int) -> RankExit:
        """How the rank ended. Call it only once `code` is set."""
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

    def end(self, code: int) -> None:
        """The process has ended."""
        self.code = code
        self.ended.set()


class Ranks:
    """The ranks of the present attempt.

    `on_exit` is called on the zygote's reader thread for each rank that the agent did not end itself.
    """

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
        self.restored = False  # they came from an image
        self.devices = SharedDevices()

    @property
    def alive(self) -> tuple[Rank, ...]:
        """Those whose processes have not ended."""
        return tuple(r for r in self.all if r.code is None)

    @property
    def attempt(self) -> int:
        """The attempt of the present ranks, ended or not; -1 where there are none."""
        return self.all[0].attempt if self.all else -1

    def spawn(self, zygote: Zygote, start: Start, arenas: Mapping[int, int]) -> None:
        """Launch every rank of this node, each with a new ring and the arena of its global rank.

        No rank of an earlier attempt may be left. Raises `Unavailable` where one cannot be forked; the others
        are then ended.
        """
        folder = self._log_dir / f"attempt_{start.attempt}"
        with contextlib.suppress(OSError):  # the ranks' output then goes nowhere
            folder.mkdir(parents=True, exist_ok=True)
        prepared = [self._prepare(start, local, folder) for local in range(self._identity.nproc_per_node)]
        self._close_rings()
        self.all, self.restored = tuple(prepared), False
        self.devices.begin(self.all, start.devices or self._identity.devices)
        try:
            for rank in prepared:
                self._fork(zygote, rank, start, arenas)
        except Unavailable:
            for rank in prepared:
                if rank.pid < 0:
                    rank.end(-signal.SIGKILL)
            self.stop(zygote, grace_s=0)
            raise

    def restore(self, zygote: Zygote, start: Start, images: ProcessImages, manifest: Manifest) -> None:
        """Bring the ranks of an image back. They stand where they stood.

        No rank of another attempt may be left. Raises `Unavailable`. Then none of these is left either.
        """
        own = {f"rank_{r}": r for r in ranks_of_node(start.node_rank, self._identity.nproc_per_node)}
        if own.keys() != manifest.outputs.keys():
            raise Unavailable(f"image {manifest.name!r}: it is of other ranks")
        ends: dict[str, int] = {}
        by_name: dict[str, Rank] = {}

        def ended(name: str, code: int) -> None:
            ends[name] = code
            if name in by_name:
                self._ended(by_name[name], code)

        images.restore(manifest, zygote, {name: partial(ended, name) for name in manifest.processes})
        rings: dict[str, int] = {}
        try:
            for name in own:
                rings[name] = ring_of(manifest.processes[name])
        except Unavailable:
            for fd in rings.values():
                os.close(fd)
            for pid in manifest.processes.values():
                zygote.signal(pid, signal.SIGKILL)
            raise
        for name, rank in own.items():
            files = dict(zip(("stdout", "stderr"), map(Path, manifest.outputs[name]), strict=True))
            by_name[name] = self._rank(start, rank, rings[name], files, restored=True)
            by_name[name].pid = manifest.processes[name]
        self._close_rings()
        self.all, self.restored = tuple(by_name.values()), True
        for name in own.keys() & ends.keys():
            if by_name[name].code is None:
                self._ended(by_name[name], ends[name])

    def share(
        self, devices: int, timeout_s: float, *, dry_run: bool = False
    ) -> tuple[dict[int, int], list[int]]:
        """Let the ranks take turns on so many devices, 0: on one each.

        Returns the device of each rank, and the ranks that do not follow in time. Raises `UsageError` where
        they cannot do that.
        """
        if self._program.mode == "exec" and devices:
            raise UsageError("ranks of --no-python cannot share devices: nothing of Pulsetrain runs in them")
        if self.restored and devices:
            raise UsageError("ranks that were restored from an image cannot share devices")
        placed = self.devices.share(self.all, devices, dry_run=dry_run)
        return placed, [] if dry_run else self.devices.wait(self.all, timeout_s)

    def stop(self, zygote: Zygote, grace_s: float) -> None:
        """End every rank: SIGTERM and SIGCONT, then SIGKILL after `grace_s`; returns once none is left.

        Raises `Unavailable` where one does not die of SIGKILL in 5 s: it hangs in the kernel.
        """
        alive = self.alive
        for rank in alive:
            rank.stopping = True
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
        """Forget the ranks and close their rings."""
        self._close_rings()
        self.all = ()

    def _prepare(self, start: Start, local_rank: int, folder: Path) -> Rank:
        rank = ranks_of_node(start.node_rank, self._identity.nproc_per_node)[local_rank]
        files = {"stdout": folder / f"rank_{rank}.out", "stderr": folder / f"rank_{rank}.err"}
        return self._rank(start, rank, create_ring(self._ring_slots), files)

    def _rank(
        self, start: Start, rank: int, ring_fd: int, files: Mapping[str, Path], *, restored: bool = False
    ) -> Rank:
        """A rank with its ring. What a restored one has printed before was read already."""
        job, node, attempt = self._identity.job, self._identity.node, start.attempt
        local_rank = rank - ranks_of_node(start.node_rank, self._identity.nproc_per_node)[0]
        return Rank(
            rank=rank,
            local_rank=local_rank,
            attempt=attempt,
            drain=Drain(
                RingReader(ring_fd),
                job=job,
                attempt=attempt,
                node=node,
                rank=rank,
                local_rank=local_rank,
                address=self._identity.address,
                switch=self._identity.switch,
            ),
            tails=tuple(
                Tail(
                    path,
                    source=source,
                    job=job,
                    attempt=attempt,
                    node=node,
                    rank=rank,
                    offset=path.stat().st_size if restored and path.exists() else 0,
                )
                for source, path in files.items()
            ),
            ring_fd=ring_fd,
            out=files["stdout"],
            err=files["stderr"],
        )

    def _fork(self, zygote: Zygote, rank: Rank, start: Start, arenas: Mapping[int, int]) -> None:
        stdout, stderr = _open_log(rank.out), _open_log(rank.err)
        environment = rank_environment(start, self._identity, rank.local_rank, self._program.role)
        process = RankProcess(
            argv=self._program.argv,
            mode=self._program.mode,
            env={**environment, PROFILE: rank.profile_prefix},
            cwd=self._program.cwd,
            stdout=stdout,
            stderr=stderr,
            files={
                "PULSETRAIN_RING_FD": rank.ring_fd,
                "PULSETRAIN_ARENA_FD": arenas[rank.rank],
                DEVICES_FD: self.devices.fd,
            },
        )
        try:
            rank.pid = zygote.spawn(process, lambda code: self._ended(rank, code))
        finally:
            os.close(stdout)
            os.close(stderr)

    def _ended(self, rank: Rank, code: int) -> None:
        rank.end(code)
        if not rank.stopping:
            self._on_exit(rank)

    def _close_rings(self) -> None:
        for rank in self.all:
            os.close(rank.ring_fd)


def _open_log(path: Path) -> int:
    """The file to write to. /dev/null where a full or broken disk refuses it: ranks run all the same."""
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
    deadline_s = time.monotonic() + timeout_s
    return [r for r in ranks if not r.ended.wait(max(0.0, deadline_s - time.monotonic()))]
