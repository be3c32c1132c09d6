"""What an agent does for each command of the hub: on a thread of its own each, answered once."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from pulsetrain.agent.link import Answer
from pulsetrain.agent.processes.ranks import NodeIdentity, Ranks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.collectors.machine import stacks
from pulsetrain.core.errors import PulsetrainError, Unavailable, Unrestorable
from pulsetrain.protocol.messages import (
    Command,
    DumpStacks,
    HostStore,
    Leave,
    PairCheck,
    Reply,
    SelfCheck,
    Start,
    Stop,
    ranks_of_node,
)

log = structlog.get_logger()

STORE = "pulsetrain.agent.processes.rendezvous:host"
SELF_CHECK = "pulsetrain.diagnostics.selfcheck:run"
ALL_GATHER = "pulsetrain.diagnostics.all_gather:run"
WORKER_TIMEOUT_S = 10.0
SELF_CHECK_MARGIN_S = 20.0


class Node(Protocol):
    """The agent, as its commands see it."""

    identity: NodeIdentity
    ranks: Ranks
    zygote: Zygote

    def launched(self, start: Start, began_ns: int) -> None: ...
    def stopped(self) -> None: ...
    def beat(self) -> None: ...
    def leave(self, command: Leave, answer: Answer) -> None: ...


class CheckpointService(Protocol):
    """Where the state of this node's ranks is kept."""

    def attach(self, rank: int, arena_fd: int) -> None: ...
    def detach(self, rank: int) -> None: ...
    def clear(self) -> None: ...
    def set_world(self, world: Any, node_rank: int, attempt: int) -> None: ...
    def load(self, rank: int, step: int, source: str) -> int: ...
    def follow(self, rings: Mapping[int, int]) -> None: ...


class Commands:
    """A command that ends ranks overtakes one that launches them: each raises the epoch, and a launch whose
    epoch has passed gives up."""

    def __init__(
        self, node: Node, keeper: CheckpointService, create_arena: Callable[[], int] | None = None
    ) -> None:
        self._node, self._keeper = node, keeper
        self._create_arena = create_arena or _create_arena
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._epochs = itertools.count(1)
        self._epoch = 0
        self._arenas: dict[int, int] = {}
        self._stores: dict[str, int] = {}

    def obey(self, command: Command, answer: Answer) -> None:
        """Carry the command out on a new thread; a `Leave` is the main thread's."""
        if isinstance(command, Leave):
            self._node.leave(command, answer)
            return
        name = f"{type(command).__name__} {command.id}"
        threading.Thread(target=self._run, args=(command, answer), name=name, daemon=True).start()

    def stop(self, grace_s: float) -> int:
        """End all ranks; the epoch that began with it. Raises `Unavailable` where one does not die."""
        epoch = self._epoch = next(self._epochs)
        with self._lock:
            self._node.ranks.stop(self._node.zygote, grace_s)
            self._node.stopped()
            self._keeper.follow({})
            self._node.ranks.close()
        return epoch

    def _run(self, command: Command, answer: Answer) -> None:
        data: Mapping[str, Any] = {}
        error = ""
        try:
            data = self._do(command)
        except Unrestorable as failure:
            error, data = str(failure), {"unrestorable": [failure.rank, failure.step]}
        except PulsetrainError as failure:
            error = str(failure)
        except Exception as failure:  # the hub is owed an answer whatever happened here
            log.exception("command_failed", type=type(command).__name__, id=command.id)
            error = f"{type(failure).__name__}: {failure}"
        if error:
            log.warning("command_refused", type=type(command).__name__, error=error)
        self._node.beat()  # goes out before the reply: what the hub decides next rests on the state as of now
        answer(Reply(id=command.id, node=self._node.identity.node, error=error, data=dict(data)))

    def _do(self, command: Command) -> Mapping[str, Any]:
        match command:
            case Start():
                return self._start(command)
            case Stop():
                self.stop(command.grace_s)
                return {}
            case HostStore():
                return self._host_store(command)
            case SelfCheck():
                kwargs: dict[str, Any] = {"seconds": command.seconds}
                return dict(self._node.zygote.call(SELF_CHECK, kwargs, command.seconds + SELF_CHECK_MARGIN_S))
            case PairCheck():
                return self._pair_check(command)
            case DumpStacks():
                alive = self._node.ranks.alive[: 1 if command.first_only else None]
                pids = {rank.rank: rank.pid for rank in alive}
                return stacks.of_node(pids, timeout_s=command.timeout_s)
            case _:
                raise PulsetrainError(f"command {type(command).__name__} is not known here")

    def _start(self, start: Start) -> Mapping[str, Any]:
        began_ns = time.time_ns()
        epoch = self.stop(0.0)
        mine = ranks_of_node(start.node_rank, self._node.identity.nproc_per_node)
        with self._loading:
            load_ns = self._restore(start, mine)
        with self._lock:
            if epoch != self._epoch:
                raise Unavailable(f"attempt {start.attempt} was stopped while it started")
            spawning_ns = time.time_ns()
            self._node.ranks.spawn(self._node.zygote, start, {r: self._arenas[r] for r in mine})
            self._keeper.follow({rank.rank: rank.ring_fd for rank in self._node.ranks.all})
            self._node.launched(start, began_ns + sum(load_ns.values()))
        self._forget_all_but(mine)
        return {"load_ns": load_ns, "spawn_ns": time.time_ns() - spawning_ns}

    def _restore(self, start: Start, mine: range) -> dict[str, int]:
        """Bring each rank's state of `restore_step` into its arena; ns it took, by rank."""
        for rank in mine:
            if rank not in self._arenas:
                self._arenas[rank] = self._create_arena()
            self._keeper.attach(rank, self._arenas[rank])
        self._keeper.set_world(start.world, start.node_rank, start.attempt)
        if start.restore_step < 0:
            self._keeper.clear()
            return {}
        return {
            str(rank): self._keeper.load(rank, start.restore_step, start.sources.get(str(rank), "memory"))
            for rank in mine
        }

    def _forget_all_but(self, mine: range) -> None:
        """Arenas of ranks that run elsewhere by now."""
        for rank in [r for r in self._arenas if r not in mine]:
            self._keeper.detach(rank)
            os.close(self._arenas.pop(rank))

    def _host_store(self, command: HostStore) -> Mapping[str, Any]:
        """Always a new store: torch's ranks add no prefix of their own for a restart any more."""
        zygote = self._node.zygote
        pid, value = zygote.serve(STORE, {}, WORKER_TIMEOUT_S)
        with self._lock:
            before, self._stores[command.job] = self._stores.get(command.job), pid
        if before is not None:
            zygote.signal(before, signal.SIGKILL)
        return dict(value)

    def _pair_check(self, check: PairCheck) -> Mapping[str, Any]:
        kwargs = {
            "index": check.members.index(self._node.identity.node),
            "size": len(check.members),
            "store_address": check.store_address,
            "store_port": check.store_port,
            "prefix": check.prefix,
            "timeout_s": check.timeout_s,
        }
        try:
            return dict(self._node.zygote.call(ALL_GATHER, kwargs, check.timeout_s + 1.0))
        except PulsetrainError as error:
            return {"ok": False, "seconds": check.timeout_s, "error": str(error)}

    def close(self) -> None:
        """Let go of the arenas."""
        for fd in self._arenas.values():
            os.close(fd)
        self._arenas.clear()


def _create_arena() -> int:
    from pulsetrain.checkpoint.memory.arena import create_arena

    return create_arena()
