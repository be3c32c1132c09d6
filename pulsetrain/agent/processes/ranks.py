"""The ranks of one node: spawn them through the zygote, see them end, end them, read what they did last."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from pulsetrain.agent.output import open_log
from pulsetrain.agent.processes import kept_ranks
from pulsetrain.agent.processes.devices import SharedDevices
from pulsetrain.agent.processes.error_file import VARIABLE as ERROR_FILE
from pulsetrain.agent.processes.kept_ranks import Seat, Seated
from pulsetrain.agent.processes.log_folders import LogFolders
from pulsetrain.agent.processes.process_groups import kill_group
from pulsetrain.agent.processes.process_images import (
    Manifest,
    ProcessImages,
    clock_ahead_ns,
    families,
    ring_of,
)
from pulsetrain.agent.processes.program_check import check_program
from pulsetrain.agent.processes.rank import NodeIdentity, Program, Rank, rank_environment
from pulsetrain.agent.processes.signal_state import ignores, listeners, listens
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.processes.zygote_protocol import RankProcess
from pulsetrain.collectors.machine.tail import Tail
from pulsetrain.collectors.rank.device_hooks import DEVICES_FD
from pulsetrain.collectors.rank.profile import VARIABLE as PROFILE
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.rank.squash.hooks import SQUASH_FD
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.collectors.reading.squash_words import SquashMemory
from pulsetrain.core.errors import ProgramRefused, Unavailable, UsageError
from pulsetrain.protocol import rank_channel
from pulsetrain.protocol.messages import ProgramUpdate, Start, ranks_of_node

KILL_TIMEOUT_S = 5.0
RESUME_TIMEOUT_S = 3.0
"""How long a kept rank may take to say that it goes on. Then it is killed and started anew."""


class Ranks:
    """The ranks of the present attempt.

    `on_exit` is called once for each rank that the agent did not end itself, on the zygote's reader thread or
    on that which spawns. `keeps` says whether ranks may be asked to go on in their processes. Then each has a
    channel to the agent, with which CRIU cannot dump it. Replicas of one device compute an optimizer's update
    once where `squash_every` is not 0. After so many steps all of them compute it, and compare.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        program: Program,
        log_dir: Path,
        on_exit: Callable[[Rank], None],
        *,
        ring_slots: int = 65536,
        keeps: Callable[[], bool] = lambda: True,
        squash_every: int = 0,
    ) -> None:
        self._keeps = keeps
        self._identity, self._program = identity, program
        self._logs = LogFolders(log_dir)
        self._on_exit = on_exit
        self._ring_slots = ring_slots
        self.all: tuple[Rank, ...] = ()
        self.restored = False  # they came from an image
        self.devices = SharedDevices(SquashMemory(squash_every) if squash_every else None)
        self._kept: dict[int, Seat] = {}  # parked processes by local rank
        self.not_kept: dict[int, str] = {}  # why ranks of the attempt before start anew
        self._ending = threading.Lock()  # so that the end of a rank that goes on is told once
        self._update = 0  # number of the update with which processes were forked last

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

        Those whose processes were kept go on there. No other rank of an earlier attempt may be left. Raises
        `Unavailable` where one cannot be forked; the others are then ended.
        """
        own_ranks = ranks_of_node(start.node_rank, self._identity.nproc_per_node)
        folder = self._logs.folder(start.attempt, own_ranks)
        prepared = [self._prepare(start, local, folder) for local in range(self._identity.nproc_per_node)]
        self._close_rings()
        self.all, self.restored = tuple(prepared), False
        for rank in prepared:
            with contextlib.suppress(OSError):  # there is none, or the disk is away
                rank.error_file.unlink()
        self.devices.begin(
            self.all,
            start.devices or self._identity.devices,
            world_size=start.node_count * self._identity.nproc_per_node,
            program=start.program.number,
        )
        if self.devices.number:
            self.drop_kept(zygote)
        self._drop_outdated(zygote, start.program.number)
        try:
            going_on = self._resume_kept(start, arenas)
            for rank in prepared:
                if rank.seat is None:
                    self._fork(zygote, rank, start, arenas)
            self._replace_silent(zygote, going_on, start, arenas)
        except Unavailable:
            for rank in self.all:
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
            by_name[name].pid = pid = manifest.processes[name]
            by_name[name].drain.restored(clock_ahead_ns(pid), time.time_ns() - time.perf_counter_ns())
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

    def look_at_devices(self, *, stepped: bool) -> None:
        """Ranks that share devices may have said who holds which shard. `stepped`: they have done a step."""
        self.devices.look(self.all, stepped=stepped)

    def forward(self, signum: int) -> None:
        """Pass a signal on to every rank that has a handler for it. The others would die of it.

        What a rank started gets it only where the rank is a program that does not listen, such as a shell.
        """
        for rank in self.alive:
            if rank.pid <= 0:
                continue
            if self._program.mode == "exec":
                pids = listeners(rank.pid, signum)
            else:
                pids = [rank.pid] if listens(rank.pid, signum) else []
            for pid in pids:
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(pid, signum)

    def kill_now(self) -> None:
        """Kill every rank with what it started, without its zygote. A signal handler may call this."""
        for rank in self.alive:
            if rank.pid > 0:
                kill_group(rank.pid, signal.SIGKILL)

    def stop(self, zygote: Zygote, grace_s: float, signum: int = signal.SIGTERM) -> None:
        """End every rank: `signum` and SIGCONT, then SIGKILL after `grace_s`; returns once none is left.

        One that ignores `signum` gets SIGTERM. Raises `Unavailable` where one does not die of SIGKILL in
        5 s: it hangs in the kernel.
        """
        alive = self.alive
        for rank in alive:
            rank.stopping = True
        if grace_s > 0:
            deaf = [rank for rank in alive if ignores(rank.pid, signum)]
            _send(zygote, [rank for rank in alive if rank not in deaf], signum)
            _send(zygote, deaf, signal.SIGTERM)
            _send(zygote, alive, signal.SIGCONT)
            _wait(alive, grace_s)
        self._end(zygote, alive)

    def stop_dumped(self, zygote: Zygote) -> None:
        """End ranks that were dumped, and all that they have started: each of these has its pid in the image.

        A process in a session of its own does not end with its rank. It would stay stopped for ever. Raises
        `Unavailable` as `stop` does.
        """
        started = families(rank.pid for rank in self.alive if rank.pid > 0)
        self.stop(zygote, 0.0)
        for process in started:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _end(self, zygote: Zygote, ranks: Sequence[Rank]) -> None:
        _send(zygote, (r for r in ranks if r.code is None), signal.SIGKILL)
        left = _wait(ranks, KILL_TIMEOUT_S)
        if left:
            names = ", ".join(f"rank {r.rank} (pid {r.pid})" for r in left)
            raise Unavailable(f"{names} did not end {KILL_TIMEOUT_S:g} s after SIGKILL")

    def keep(
        self, zygote: Zygote, fresh: Collection[int], timeout_s: float, given_up: Callable[[], bool]
    ) -> None:
        """End the attempt, and keep the processes of ranks that can go on in the next one.

        `fresh` are at fault. What does not give up its attempt in `timeout_s` is killed, as all others are.
        Raises `Unavailable` as `stop` does.
        """
        alive = self.alive
        for rank in alive:
            rank.stopping = True
        why_none = self._why_none()
        seats = {r.rank: r.seat for r in alive if r.seat is not None and not why_none}
        if alive:  # else it was done before
            self.not_kept = dict.fromkeys((r.rank for r in alive), why_none) if why_none else {}
        _send(zygote, (r for r in alive if r.rank in fresh), signal.SIGKILL)
        result = kept_ranks.park(seats, fresh, timeout_s, given_up)
        self.not_kept |= result.refused
        kept = [r for r in alive if r.rank in result.kept]
        self._kept |= {r.local_rank: result.kept[r.rank] for r in kept}
        self._end(zygote, [r for r in alive if r not in kept])

    def _why_none(self) -> str:
        """Why no rank of this node is kept, "" where they may be."""
        if self.devices.number:
            return "ranks that share devices start anew"
        return "" if self._keeps() else "ranks of a host that dumps processes start anew"

    def drop_kept(self, zygote: Zygote) -> None:
        """Kill the processes that were kept. Nothing is told of them."""
        seats, self._kept, self.not_kept = list(self._kept.values()), {}, {}
        kept_ranks.kill(seats, zygote.signal, KILL_TIMEOUT_S)

    def _drop_outdated(self, zygote: Zygote, update: int) -> None:
        """Kill processes that were kept and run the program from before an update."""
        outdated = bool(self._kept) and update != self._update
        self._update = update
        if outdated:
            ranks = [seat.rank.rank for seat in self._kept.values() if seat.rank is not None]
            self.drop_kept(zygote)
            self.not_kept = dict.fromkeys(ranks, "it runs the program from before an update")

    def refuse_update(self, update: ProgramUpdate) -> None:
        """Raises `ProgramRefused` where what an update wants to launch is not on this node."""
        if not update.number:
            return
        try:
            check_program(self._program.updated(update))
        except UsageError as error:
            raise ProgramRefused(str(error)) from error

    @property
    def parked(self) -> int:
        """How many processes wait to go on in another attempt."""
        return len(self._kept)

    @property
    def kept(self) -> list[int]:
        """Ranks of the present attempt that go on in the process of an earlier one."""
        return [rank.rank for rank in self.all if rank.kept]

    def close(self) -> None:
        """Forget the ranks and close their rings. Processes that were kept stay."""
        self._close_rings()
        parked = list(self._kept.values())
        for rank in self.all:
            if rank.seat is not None and rank.seat not in parked:
                rank.seat.close()
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

    def _environment(self, rank: Rank, start: Start) -> dict[str, str]:
        environment = rank_environment(start, self._identity, rank.local_rank, self._program.role)
        environment |= {PROFILE: rank.profile_prefix, ERROR_FILE: str(rank.error_file)}
        return {**start.program.environment, **environment}

    def _resume_kept(self, start: Start, arenas: Mapping[int, int]) -> dict[int, Seat]:
        """Tell the processes that were kept to go on. Returns them by rank."""
        kept, self._kept = self._kept, {}
        going_on: dict[int, Seat] = {}
        for rank in self.all:
            seat = kept.get(rank.local_rank)
            if seat is None or seat.rank is None or seat.rank.code is not None:
                continue
            rank.seat, rank.pid, rank.kept, rank.resuming = seat, seat.rank.pid, True, True
            seat.rank = rank
            stdout, stderr = open_log(rank.out), open_log(rank.err)
            try:
                files = (stdout, stderr, rank.ring_fd, arenas[rank.rank])
                kept_ranks.resume(seat, self._environment(rank, start), files)
            finally:
                os.close(stdout)
                os.close(stderr)
            going_on[rank.rank] = seat
        return going_on

    def _replace_silent(
        self, zygote: Zygote, going_on: Mapping[int, Seat], start: Start, arenas: Mapping[int, int]
    ) -> None:
        """Start those anew that do not say in time that they go on, or die before.

        That such a process died is told to nobody: the attempt has not begun in it.
        """
        said = kept_ranks.resumed(going_on, start.attempt, RESUME_TIMEOUT_S)
        silent = [rank for rank in self.all if rank.rank in going_on and rank.rank not in said]
        self._tell_resumed([rank for rank in self.all if rank.rank in said])
        for rank in silent:
            rank.stopping = True
        dead = {rank.rank for rank in silent if rank.code is not None}
        self._end(zygote, silent)
        for rank in silent:
            why = (
                "its process is gone" if rank.rank in dead else f"it did not go on in {RESUME_TIMEOUT_S:g} s"
            )
            self.not_kept[rank.rank] = why
            again = self._prepare(start, rank.local_rank, rank.out.parent)
            os.close(rank.ring_fd)
            self.all = tuple(again if r is rank else r for r in self.all)
            self._fork(zygote, again, start, arenas)

    def _tell_resumed(self, ranks: Sequence[Rank]) -> None:
        """These have gone on. Tell the end of those that have ended since."""
        with self._ending:
            for rank in ranks:
                rank.resuming = False
            ended = [rank for rank in ranks if rank.code is not None and not rank.stopping]
        for rank in ended:
            self._on_exit(rank)

    def _fork(self, zygote: Zygote, rank: Rank, start: Start, arenas: Mapping[int, int]) -> None:
        stdout, stderr = open_log(rank.out), open_log(rank.err)
        seat = rank.seat = Seat(self._ended)
        seat.rank = rank
        channel = {rank_channel.VARIABLE: seat.rank_end.fileno()} if self._keeps() else {}
        squash = {SQUASH_FD: self.devices.squash.fd} if self.devices.squash is not None else {}
        program = self._program.updated(start.program)
        process = RankProcess(
            argv=program.words(rank.local_rank),
            mode=program.mode,
            env=self._environment(rank, start),
            cwd=program.cwd,
            stdout=stdout,
            stderr=stderr,
            files={
                "PULSETRAIN_RING_FD": rank.ring_fd,
                "PULSETRAIN_ARENA_FD": arenas[rank.rank],
                DEVICES_FD: self.devices.fd,
                **channel,
                **squash,
            },
        )
        try:
            rank.pid = zygote.spawn(process, seat.exited)
        finally:
            seat.forked()
            os.close(stdout)
            os.close(stderr)

    def _ended(self, rank: Seated, code: int) -> None:
        with self._ending:
            rank.end(code)
            if not isinstance(rank, Rank) or rank.stopping or rank.resuming:
                return
        self._on_exit(rank)

    def _close_rings(self) -> None:
        for rank in self.all:
            os.close(rank.ring_fd)


def _send(zygote: Zygote, ranks: Iterable[Rank], signum: int) -> None:
    for rank in ranks:
        if rank.pid > 0:
            zygote.signal(rank.pid, signum)


def _wait(ranks: Iterable[Rank], timeout_s: float) -> list[Rank]:
    """Those that have not ended after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    return [r for r in ranks if not r.ended.wait(max(0.0, deadline_s - time.monotonic()))]
