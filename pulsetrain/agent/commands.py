"""What an agent does for each command of the hub: on a thread of its own each, answered once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import structlog

from pulsetrain.agent import holding, image_commands, profiling, ras_command
from pulsetrain.agent.check_commands import CheckCommands
from pulsetrain.agent.link import SendReply
from pulsetrain.agent.loading import Loading
from pulsetrain.agent.processes.process_images import Manifest, ProcessImages, arena_of
from pulsetrain.agent.processes.rank import NodeIdentity, Rank
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.agent.processes.replay_ranks import ReplayRanks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.store_check import CONNECT_S, why_unreachable
from pulsetrain.agent.world_part import world_of
from pulsetrain.collectors.machine import stacks
from pulsetrain.collectors.machine.gpu_settings import SettingsKeeper
from pulsetrain.core.errors import (
    NotReshardable,
    ProgramRefused,
    PulsetrainError,
    RanksRun,
    Unavailable,
    Unrestorable,
    WorldNeeded,
)
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import machine_kind
from pulsetrain.diagnostics.port_speed import other_ports, speed_of_address
from pulsetrain.protocol.messages import (
    ArithmeticCheck,
    Command,
    DumpRanks,
    DumpStacks,
    Held,
    HoldRanks,
    HostStore,
    Leave,
    LinkSend,
    LinkSink,
    PairCheck,
    Ping,
    Profile,
    ReadRas,
    ReplayCheck,
    Reply,
    SaveFrom,
    SelfCheck,
    ShareDevices,
    Start,
    Stop,
    WorldNode,
    ranks_of_node,
)

log = structlog.get_logger()

STORE = "pulsetrain.agent.processes.rendezvous:host"
SELF_CHECK = "pulsetrain.diagnostics.selfcheck:run"
ALL_GATHER = "pulsetrain.diagnostics.all_gather:run"
WORKER_TIMEOUT_S = 10.0
SELF_CHECK_MARGIN_S = 20.0
OWN_PORTS_S = 30.0
STORE_SHARE = 0.75
"""of the time of a group, for the store to be reached. TCP tries a second time after a second"""


class Node(Protocol):
    """The agent, as its commands see it."""

    identity: NodeIdentity
    ranks: Ranks

    @property
    def zygote(self) -> Zygote: ...
    def launched(self, start: Start, began_ns: int) -> None: ...
    def stopped(self) -> None: ...
    def drain(self) -> None: ...
    def send_heartbeat(self) -> None: ...
    def leave(self, command: Leave, send_reply: SendReply) -> None: ...


class Checkpoints(Protocol):
    """Where the state of this node's ranks is kept."""

    @property
    def peer_port(self) -> int: ...
    def attach(self, rank: int, arena_fd: int) -> None: ...
    def detach(self, rank: int) -> None: ...
    def clear(self) -> None: ...
    def set_world(
        self,
        world: tuple[WorldNode, ...],
        node_rank: int,
        attempt: int,
        key: str = "",
        holders: tuple[WorldNode, ...] = (),
        run: str = "",
    ) -> None: ...
    def load(
        self,
        rank: int,
        step: int,
        source: str,
        replica_attempt: int = -1,
        saved_attempt: int = -1,
        saved_history: int = -1,
    ) -> int: ...
    def reshard(self, ranks: Sequence[int], start: Start) -> int: ...
    def not_reshardable(self, rank: int) -> str: ...
    def retire(self, rank: int, arena_fd: int) -> None: ...
    def reclaim(self, rank: int) -> int: ...
    def save_from(self, step: int) -> None: ...
    @property
    def persists(self) -> bool: ...
    def persist_newest(self, timeout_s: float) -> int: ...
    def finish_persisting(self) -> bool: ...
    def follow(self, rings: Mapping[int, int]) -> None: ...
    def held(self) -> tuple[Held, ...]: ...
    @property
    def stored_attempt(self) -> int: ...


class Commands:
    """Carries out commands.

    A command that ends ranks overtakes one that launches them: each begins a new epoch, and a launch whose
    epoch has passed gives up. Epochs count commands in the order in which they came, whichever thread is the
    first. One that ends ranks does nothing where a launch that came later has ended them.
    `environ` is what the ranks have, `gpus` gives the UUIDs of the GPUs that they may use as of now, none
    where that is not known.
    """

    def __init__(
        self,
        node: Node,
        checkpoints: Checkpoints,
        create_arena: Callable[[], int] | None = None,
        *,
        images: ProcessImages | None = None,
        environ: Mapping[str, str] | None = None,
        settings: SettingsKeeper | None = None,
        replays: ReplayRanks | None = None,
        port_speed: Callable[[str], float] = speed_of_address,
        gpus: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._node, self._checkpoints = node, checkpoints
        self._environ = {} if environ is None else environ
        self._settings = settings or SettingsKeeper()
        self._images = images or ProcessImages(Path("."), allowed="never")
        self._create_arena = create_arena or _create_arena
        self._ranks_lock, self._restore_lock = threading.Lock(), threading.Lock()
        self._epochs, self._epoch_lock = itertools.count(1), threading.Lock()
        self._epoch = self._launch_epoch = 0
        self._dumps = 0
        self._restoring: Start | None = None
        self.loading = Loading()
        self._arenas: dict[int, int] = {}
        self._stores: dict[str, int] = {}
        self._checks = CheckCommands()
        self._replays = replays or ReplayRanks()
        self._port_speed, self._gpus = port_speed, gpus

    @property
    def restoring(self) -> Start | None:
        """The launch whose ranks are being brought back from their image, None for none."""
        return self._restoring

    def execute(self, command: Command, send_reply: SendReply) -> None:
        """Carry the command out on a new thread. The main thread carries out `Leave`."""
        if isinstance(command, Ping):
            send_reply(Reply(id=command.id, node=self._node.identity.node))
            return
        if isinstance(command, Leave):
            self._node.leave(command, send_reply)
            return
        if isinstance(command, Start) and command.image:
            self._restoring = command  # on the thread that says hello: no hello comes in between
        epoch = next(self._epochs)
        name = f"{type(command).__name__} {command.id}"
        threading.Thread(target=self._run, args=(command, send_reply, epoch), name=name, daemon=True).start()

    def stop(self, grace_s: float, signum: int = signal.SIGTERM) -> int:
        """End all ranks, and processes of ranks that were kept. See `_end_ranks`."""
        return self._end_ranks(Stop(id=0, reason="", grace_s=grace_s), signum)

    def _end_ranks(self, stop: Stop | None, signum: int = signal.SIGTERM, epoch: int = 0) -> int:
        """End all ranks; the epoch that began with it, a new one for 0. None: a launch follows, so leave
        processes alone that were kept.

        Raises `Unavailable` where one does not die, and `RanksRun` where their image is gone.
        """
        epoch = epoch or next(self._epochs)
        with self._epoch_lock:
            self._epoch = max(epoch, self._epoch)
        self._replays.end()
        with self._ranks_lock:
            if epoch < self._launch_epoch:
                log.info("overtaken_by_a_launch", why=stop.reason if stop is not None else "")
                return epoch
            self._launch_epoch = self._launch_epoch if stop is not None else epoch
            ranks, zygote = self._node.ranks, self._node.zygote
            image = stop.image if stop is not None else ""
            if image and not self._images.keeps(image) and _run_on(ranks.alive):
                raise RanksRun(f"image {image!r} is gone, and its ranks run on")
            if stop is not None and stop.keep:
                ranks.keep(zygote, stop.fresh, stop.wake_s, lambda: epoch != self._epoch)
            else:
                if image:
                    ranks.stop_dumped(zygote)
                else:
                    ranks.stop(zygote, stop.grace_s if stop is not None else 0.0, signum)
                if stop is not None:
                    ranks.drop_kept(zygote)
            self._forget_ranks()
        return epoch

    def _forget_ranks(self) -> None:
        """No rank is left."""
        self._node.stopped()
        self._checkpoints.follow({})
        self._node.ranks.close()

    def close(self) -> None:
        """Close the arenas."""
        for fd in self._arenas.values():
            os.close(fd)
        self._arenas.clear()

    def _run(self, command: Command, send_reply: SendReply, epoch: int = 0) -> None:
        data: JsonObject = {}
        error = ""
        try:
            with self._kept_settings(command):
                data = self._dispatch(command, epoch)
        except Unrestorable as failure:
            error, data = str(failure), {"unrestorable": [failure.rank, failure.step]}
        except WorldNeeded as failure:
            log.info("world_needed", why=str(failure))
            data = {"needs_world": True}
        except NotReshardable as failure:
            error = str(failure)
            data = {"not_reshardable": error}
        except ProgramRefused as failure:
            error = str(failure)
            data = {"program_refused": error}
        except RanksRun as failure:
            error, data = str(failure), {"ranks_run": True}
        except PulsetrainError as failure:
            error = str(failure)
        except Exception as failure:  # the hub waits for a reply, whatever happened here
            log.exception("command_failed", type=type(command).__name__, id=command.id)
            error = f"{type(failure).__name__}: {failure}"
        if error:
            log.warning("command_refused", type=type(command).__name__, error=error)
            data |= self._image_left(command)
        if self._restoring is command:
            self._restoring = None
        self._node.send_heartbeat()  # before the reply: what the hub decides next rests on the present state
        send_reply(Reply(id=command.id, node=self._node.identity.node, error=error, data=data))

    def _image_left(self, command: Command) -> JsonObject:
        """Whether a restore that failed can be tried again."""
        if isinstance(command, Start) and command.image:
            return {"image_kept": self._images.keeps(command.image)}
        return {}

    def _kept_settings(self, command: Command) -> contextlib.AbstractContextManager[None]:
        """Checks that use GPUs leave their clocks and power limits as they were, also if they are killed."""
        touches = isinstance(command, SelfCheck | PairCheck | ArithmeticCheck | ReplayCheck)
        return self._settings.kept() if touches else contextlib.nullcontext()

    def _dispatch(self, command: Command, epoch: int) -> JsonObject:
        if isinstance(command, SelfCheck | PairCheck | ArithmeticCheck):
            self._replays.end()  # of a hub that is gone: it would use what is measured
        match command:
            case Start():
                return self._start(command, epoch)
            case Stop():
                self._end_ranks(command, epoch=epoch)
                return {"parked": self._node.ranks.parked}
            case SaveFrom():
                self._checkpoints.save_from(command.step)
                return {}
            case ShareDevices():
                placed, late = self._node.ranks.share(
                    command.devices, command.timeout_s, dry_run=command.dry_run
                )
                return {"devices": {str(rank): device for rank, device in placed.items()}, "late": late}
            case HoldRanks():
                self._let_dumped_go(command.number)
                return holding.run(command, self._node.ranks.attempt, self._node.ranks.alive)
            case DumpRanks():
                return self._dump_ranks(command)
            case HostStore():
                return self._host_store(command)
            case SelfCheck():
                return self._self_check(command)
            case PairCheck():
                return self._pair_check(command)
            case LinkSink() | LinkSend() | ArithmeticCheck():
                return self._check(command)
            case ReplayCheck():
                return self._replays.run(self._node.zygote, self._node.identity, command)
            case DumpStacks():
                wanted = [r for r in self._node.ranks.alive if not command.ranks or r.rank in command.ranks]
                pids = {r.rank: r.pid for r in wanted[: 1 if command.first_only else None]}
                return dict(stacks.of_node(pids, timeout_s=command.timeout_s))
            case ReadRas():
                return ras_command.run(command, self._environ)
            case Profile():
                return profiling.run(command, self._node.ranks.alive)
            case _:
                raise PulsetrainError(f"command {type(command).__name__} is not known here")

    def _start(self, start: Start, epoch: int) -> JsonObject:
        began_ns = time.time_ns()
        epoch = self._end_ranks(None, epoch=epoch)
        self._go_on_if(epoch, start)
        if start.image:
            return self._restore_ranks(start, epoch, began_ns)
        self._node.ranks.refuse_update(start.program)
        self._images.clear()  # its ranks would write into files that others write by then
        unreachable = start.check_store and why_unreachable(start.store_address, start.store_port)
        if unreachable:
            return {"store_unreachable": unreachable}
        own_ranks = ranks_of_node(start.node_rank, self._node.identity.nproc_per_node)
        with self._restore_lock, self.loading.runs():
            load_ns = self._restore(start, own_ranks)
        with self._ranks_lock:
            self._go_on_if(epoch, start)
            spawning_ns = time.time_ns()
            self._node.ranks.spawn(self._node.zygote, start, {r: self._arenas[r] for r in own_ranks})
            self._checkpoints.follow({rank.rank: rank.ring_fd for rank in self._node.ranks.all})
            self._node.launched(start, began_ns + sum(load_ns.values()))
        self._give_arenas_except(own_ranks)
        not_kept = {str(rank): why for rank, why in self._node.ranks.not_kept.items()}
        kept = list(self._node.ranks.kept)
        spawn_ns = time.time_ns() - spawning_ns
        data = {"load_ns": load_ns, "spawn_ns": spawn_ns, "kept": kept, "not_kept": not_kept}
        return {**data, "program": start.program.number}

    def _dump_ranks(self, command: DumpRanks) -> JsonObject:
        with self._ranks_lock:
            self._node.drain()  # or the same rows would be read from the image again
            store, ranks = self._stores.get(self._node.identity.job), self._node.ranks
            held = image_commands.holds(ranks.alive)
            done = image_commands.dump(command, ranks, self._images, store, devices=ranks.devices.number)
            if image_commands.holds(ranks.alive) != held:
                self._images.clear()
                image_commands.go_on(ranks.alive, store)
                raise Unavailable("another hub wants the ranks to run, or to stand for something else")
            self._dumps += 1
            args = (self._dumps, ranks.alive, store)
            timer = threading.Timer(image_commands.STOPPED_S, self._go_on, args)
            timer.daemon = True
            timer.start()
        return done

    def _let_dumped_go(self, number: int) -> None:
        """Who asks for another hold than that of the dump is another hub. It does not end these ranks.

        While they are dumped, the dump itself looks for that at its end.
        """
        if self._ranks_lock.acquire(blocking=False):
            try:
                dumped = [rank for rank in _run_on(self._node.ranks.alive) if rank.dumped]
                if dumped and image_commands.holds(dumped) != {number}:
                    self._images.clear()
                    image_commands.go_on(dumped, self._stores.get(self._node.identity.job))
            finally:
                self._ranks_lock.release()

    def _go_on(self, dump: int, ranks: Sequence[Rank], store: int | None) -> None:
        """Nobody has ended the ranks that were dumped: a hub that is lost must not stop a job.

        Where they have run on since, and were dumped once more, that dump has a time of its own. Ranks that
        were told to end need their image, also where one dies slowly.
        """
        with self._ranks_lock:
            left = _run_on(ranks)
            if dump == self._dumps and left:
                self._images.clear()
                image_commands.go_on(left, store)

    def _restore_ranks(self, start: Start, epoch: int, began_ns: int) -> JsonObject:
        """Bring the ranks of an image back, and let them run on. Only then the image is gone.

        Where it fails no rank of it is left, and what checkpoints have in memory stays.
        """
        self._node.send_heartbeat()  # instead of an older one that was not sent yet
        store = self._stores.pop(start.job, None)
        if store is not None:
            self._node.zygote.signal(store, signal.SIGKILL)
        own_ranks = ranks_of_node(start.node_rank, self._node.identity.nproc_per_node)
        manifest = image_commands.read(start, self._images, store)
        with self._restore_lock:
            self._attach(start, own_ranks)
        with self._ranks_lock:
            self._go_on_if(epoch, start)
            self._node.ranks.restore(self._node.zygote, start, self._images, manifest)
            try:
                self._take_restored(start, epoch, began_ns, manifest)
            except BaseException:
                self._node.ranks.stop(self._node.zygote, 0.0)
                self._forget_ranks()
                raise
            self._images.clear()
            for rank in self._node.ranks.all:
                rank.hold(0, 0, 0)
        return {"restore_ns": time.time_ns() - began_ns}

    def _take_restored(self, start: Start, epoch: int, began_ns: int, manifest: Manifest) -> None:
        """Ranks stand as they were dumped. From now on they are those of this attempt."""
        self._stores |= image_commands.store_of(start.job, manifest)
        self._go_on_if(epoch, start)  # a stop came meanwhile: nothing has changed yet that the image has
        self._checkpoints.clear()
        self._checkpoints.follow({rank.rank: rank.ring_fd for rank in self._node.ranks.all})
        self._node.launched(start, began_ns)
        for rank in self._node.ranks.all:
            self._take_arena(rank)

    def _go_on_if(self, epoch: int, start: Start) -> None:
        """Raises `Unavailable` where ranks were stopped since the launch of `epoch` began."""
        if epoch != self._epoch:
            raise Unavailable(f"attempt {start.attempt} was stopped while it started")

    def _take_arena(self, rank: Rank) -> None:
        """A restored rank saves into the arena that came back with it, not into the one of its node."""
        try:
            fd = arena_of(rank.pid)
        except Unavailable as error:
            log.warning("arena_missing", rank=rank.rank, error=str(error))
            return
        self._checkpoints.detach(rank.rank)
        os.close(self._arenas[rank.rank])
        self._arenas[rank.rank] = fd
        self._checkpoints.attach(rank.rank, fd)

    def _restore(self, start: Start, own_ranks: range) -> dict[str, int]:
        """Bring each rank's state of `restore_step` into its arena; ns it took, by rank."""
        self._attach(start, own_ranks)
        if start.restore_step < 0:
            self._checkpoints.clear()
            return {}
        if start.shards:
            return {str(own_ranks[0]): self._checkpoints.reshard(own_ranks, start)}
        return {
            str(rank): self._checkpoints.load(
                rank,
                start.restore_step,
                start.sources.get(str(rank), "memory"),
                start.replica_attempt,
                start.saved_attempt,
                start.saved_history,
            )
            for rank in own_ranks
        }

    def _attach(self, start: Start, own_ranks: range) -> None:
        """Watch an arena for each rank, in the world of this attempt."""
        for rank in own_ranks:
            if rank not in self._arenas:
                kept = self._checkpoints.reclaim(rank)
                self._arenas[rank] = self._create_arena() if kept < 0 else kept
            self._checkpoints.attach(rank, self._arenas[rank])
        world, key = world_of(start), start.peer_key
        self._checkpoints.set_world(world, start.node_rank, start.attempt, key, start.holders, start.run)

    def _give_arenas_except(self, own_ranks: range) -> None:
        """Give the arenas away of ranks that run on another node by now."""
        for rank in [r for r in self._arenas if r not in own_ranks]:
            self._checkpoints.retire(rank, self._arenas.pop(rank))

    def _host_store(self, command: HostStore) -> JsonObject:
        """Start a new store, also where the job has one: a restarted rank would find the old keys in that."""
        zygote = self._node.zygote
        pid, value = zygote.serve(STORE, {"dumpable": self._images.possible}, WORKER_TIMEOUT_S)
        with self._ranks_lock:
            before, self._stores[command.job] = self._stores.get(command.job), pid
        if before is not None:
            zygote.signal(before, signal.SIGKILL)
        return cast("JsonObject", value)

    def _check(self, command: LinkSink | LinkSend | ArithmeticCheck) -> JsonObject:
        zygote, address = self._node.zygote, self._node.identity.address
        match command:
            case LinkSink():
                others = other_ports(address)
                opened = self._checks.link_sink(zygote, address, command, others)
                for rail in opened.get("rails", {}).values():
                    rail["speed_bits_per_s"] = self._port_speed(rail["address"])
                speed, machine = self._port_speed(address), machine_kind.describe()
                about: JsonObject = {"machine": machine, "others": list(others)}
                return {**opened, "speed_bits_per_s": speed, **about}
            case LinkSend():
                return self._checks.link_send(zygote, address, command, other_ports)
            case ArithmeticCheck():
                return self._checks.arithmetic(zygote, command)

    def _self_check(self, check: SelfCheck) -> JsonObject:
        gpus = list(self._gpus())
        kwargs: JsonObject = {"seconds": check.seconds} | ({"gpus": gpus} if gpus else {})
        timeout_s = check.seconds + SELF_CHECK_MARGIN_S
        if check.whole_node:
            kwargs |= {"whole_node": True, "timeout_s": check.group_timeout_s}
            kwargs["rdma"] = self._checks.own_rdma(self._node.identity.address)
            timeout_s += check.group_timeout_s + OWN_PORTS_S
        zygote = self._node.zygote
        try:
            if zygote.ready and not zygote.dead:
                return cast("JsonObject", zygote.call(SELF_CHECK, kwargs, timeout_s))
        except Unavailable:
            if not zygote.dead:
                raise
        return {"not_ready": "the process that checks are forked from is being started anew"}

    def _pair_check(self, check: PairCheck) -> JsonObject:
        began_s = time.monotonic()
        connect_s = min(CONNECT_S, STORE_SHARE * check.timeout_s)
        unreachable = why_unreachable(check.store_address, check.store_port, connect_s)
        if unreachable:
            error = f"store not reached: {unreachable}"
            return {"ok": False, "seconds": check.timeout_s, "error": error, "store_unreachable": True}
        left_s = check.timeout_s - (time.monotonic() - began_s)
        kwargs: JsonObject = {
            "index": check.members.index(self._node.identity.node),
            "size": len(check.members),
            "store_address": check.store_address,
            "store_port": check.store_port,
            "prefix": check.prefix,
            "timeout_s": left_s,
            "payload_bytes": check.payload_bytes,
            "reduce": check.reduce,
        }
        try:
            return cast("JsonObject", self._node.zygote.call(ALL_GATHER, kwargs, left_s + 1.0))
        except PulsetrainError as error:
            return {"ok": False, "seconds": check.timeout_s, "error": str(error)}


def _run_on(ranks: Sequence[Rank]) -> list[Rank]:
    """Those that nobody has told to end. One that was killed may die slowly."""
    return [rank for rank in ranks if rank.code is None and not rank.stopping]


def _create_arena() -> int:
    from pulsetrain.checkpoint.memory.arena import create_arena

    return create_arena()
