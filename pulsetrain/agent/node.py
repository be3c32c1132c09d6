"""One node as its agent, the hub's commands and its heartbeats see it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import structlog

from pulsetrain import __version__
from pulsetrain.agent.attempt import AttemptState
from pulsetrain.agent.commands import Checkpoints, Commands
from pulsetrain.agent.heartbeat import HeartbeatSender, NodeState
from pulsetrain.agent.hub_notice import HubNotice
from pulsetrain.agent.link import Link, SendReply
from pulsetrain.agent.processes.process_images import ProcessImages
from pulsetrain.agent.processes.rank import NodeIdentity, Rank
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.agent.processes.replay_ranks import ReplayRanks
from pulsetrain.agent.processes.zygote import Zygote, ZygoteHolder
from pulsetrain.collectors.machine.activity import ActivityMeter
from pulsetrain.collectors.machine.gpu_count import visible_gpus
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import (
    Command,
    GpuIdentity,
    HardwareSign,
    Heartbeat,
    Hello,
    Leave,
    RankExit,
    Start,
)

log = structlog.get_logger()


class Recorder(Protocol):
    """Records what the agent sees. It is called on any thread."""

    def gauges(self) -> Mapping[str, float]: ...
    def heartbeat(self, heartbeat: Heartbeat) -> None: ...
    def follow(self, ranks: Sequence[Rank]) -> None: ...
    def drain(self) -> object: ...


class Machine(Protocol):
    """What the node's hardware is, and the signs of trouble that it shows. It is called on any thread.

    `usable` are the UUIDs of the GPUs that ranks may use, empty where that is not known.
    """

    @property
    def identities(self) -> Sequence[GpuIdentity]: ...
    @property
    def usable(self) -> Sequence[str]: ...
    def signs(self, now_ns: int) -> tuple[HardwareSign, ...]: ...


class UnknownMachine:
    """A machine of which nothing is known."""

    identities: Sequence[GpuIdentity] = ()
    usable: Sequence[str] = ()

    def signs(self, now_ns: int) -> tuple[HardwareSign, ...]:
        """See `Machine`."""
        return ()


@dataclass(frozen=True, kw_only=True)
class NodeParts:
    """What a node is made of.

    `ranks` makes the node's ranks; it gets a function to call with each rank that ends. `loops` gives the
    statuses of the loops that belong to none of the other parts. `environ` is the environment of the ranks.
    `replays` are the ranks that replay training for a check. `heartbeat_s` is how often a heartbeat is sent.
    `say` tells a person one line.
    """

    ranks: Callable[[Callable[[Rank], None]], Ranks]
    zygotes: ZygoteHolder
    checkpoints: Checkpoints
    recorder: Recorder
    machine: Machine = field(default_factory=UnknownMachine)
    images: ProcessImages = field(default_factory=lambda: ProcessImages(Path("."), allowed="never"))
    loops: Callable[[], Iterable[LoopStatus]] = tuple
    environ: Mapping[str, str] = field(default_factory=dict)
    replays: ReplayRanks = field(default_factory=ReplayRanks)
    heartbeat_s: float = 1.0
    say: Callable[[str], None] = lambda _: None


class Node:
    """The ranks, the zygote and the link of one node. Any thread may call it.

    `on_rank_exit` gets each rank that ended by itself, `on_leave` the hub's command to leave. `on_launched`
    is called when ranks of a new attempt are running.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        hub: HubAddress,
        parts: NodeParts,
        *,
        on_rank_exit: Callable[[Rank], None],
        on_leave: Callable[[Leave, SendReply], None],
        on_launched: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = identity
        self.ranks = parts.ranks(on_rank_exit)
        self.zygotes = parts.zygotes
        self.leave, self._on_launched = on_leave, on_launched
        self.link = Link(hub, self._greeting, self._on_command, HubNotice(parts.say))
        self._parts = parts
        self.was_asked_to_start = False
        self._agent_id = secrets.token_hex(8)  # of this process, also after a reconnect
        self._greeted_gpus: tuple[GpuIdentity, ...] = ()
        self._attempt = AttemptState(identity.node)
        self._activity = ActivityMeter()
        self._commands = Commands(
            self,
            parts.checkpoints,
            images=parts.images,
            environ=parts.environ,
            replays=parts.replays,
            gpus=lambda: parts.machine.usable,
        )
        self._heartbeats = HeartbeatSender(
            identity, self._state, (self.link.send_heartbeat, parts.recorder.heartbeat)
        )

    @property
    def zygote(self) -> Zygote:
        """The present zygote."""
        return self.zygotes.current

    @property
    def culprit(self) -> RankExit | None:
        """The rank of this node that failed first, in the present attempt or the one stopped last."""
        return self._attempt.culprit

    @property
    def warming_up(self) -> bool:
        """Whether a first step is expected soon."""
        return self._attempt.warming_up(time.time_ns())

    @property
    def awaits_first_step(self) -> bool:
        """Whether ranks run whose first step was not reported."""
        return self._attempt.awaits_first_step

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the state as of now."""
        self._heartbeats.send()

    def report_first_step(self) -> None:
        """Tell the hub of the first step, where every rank has done it and the hub does not know."""
        report = self._attempt.first_step(self.ranks.all, time.time_ns())
        if report is not None:
            self.link.report(report)

    def look_at_devices(self) -> None:
        """Place ranks that share devices by the shards that they hold, once they have said that."""
        self.ranks.look_at_devices(stepped=self._attempt.has_stepped(self.ranks.attempt))

    def report_exit(self, report: RankExit) -> None:
        """Tell the hub of a rank's end, unless the agent has stopped that attempt meanwhile."""
        present = report.attempt == self.ranks.attempt
        self._attempt.ended(report, present=present)
        if present:
            self.send_heartbeat()
            why_not = self._parts.checkpoints.not_reshardable(report.rank) if report.code else ""
            self.link.report(replace(report, not_reshardable=why_not))

    def launched(self, start: Start, began_ns: int) -> None:
        """Ranks of a new attempt are running."""
        self._attempt.launched(start, began_ns)
        self._on_launched()
        self._parts.recorder.follow(self.ranks.all)

    def stopped(self) -> None:
        """No rank is left, because the agent ended them. Their rings are about to be closed."""
        self._parts.recorder.drain()
        self._parts.recorder.follow(())
        self._attempt.stopped()

    def drain(self) -> None:
        """Record what ranks have written until now."""
        self._parts.recorder.drain()

    @property
    def persists(self) -> bool:
        """Whether checkpoints reach storage."""
        return self._parts.checkpoints.persists

    def stop_ranks(self, grace_s: float, signum: int = signal.SIGTERM) -> str:
        """End all ranks; "" or one line about those that do not end."""
        try:
            self._commands.stop(grace_s, signum)
        except PulsetrainError as error:
            log.warning("ranks_left", error=str(error))
            return str(error)
        return ""

    def close(
        self,
        *,
        grace_s: float = 0.0,
        persist_s: float = 0.0,
        signum: int = signal.SIGTERM,
        finished: bool = False,
    ) -> None:
        """End all ranks, the zygote and the connection, in that order.

        Ranks may take `grace_s` to end after the signal. After them, persist the newest checkpoint where that
        takes `persist_s` at most. 0: do not. Where the job has `finished`, wait for those that are on their
        way to storage.
        """
        self.stop_ranks(grace_s, signum)
        if persist_s:
            self._persist(persist_s)
        elif finished:
            self._finish_persisting()
        self.zygotes.close()
        self.ranks.close()
        self.ranks.devices.close()
        self.link.close()

    def _persist(self, timeout_s: float) -> None:
        """This node's memory ends with its agent. A failure must not keep the agent from ending."""
        try:
            step = self._parts.checkpoints.persist_newest(timeout_s)
        except Exception as error:  # whatever a storage backend raises
            log.exception("not_persisted", error=str(error))
            return
        if step >= 0:
            log.info("persisted_at_end", step=step)

    def _finish_persisting(self) -> None:
        """The script may have asked for them. A failure must not keep the agent from ending."""
        try:
            whole = self._parts.checkpoints.finish_persisting()
        except Exception as error:  # whatever a storage backend raises
            log.exception("not_persisted", error=str(error))
            return
        if not whole:
            log.warning("not_persisted", error="storage took nothing more of the last checkpoint")

    def _state(self, now_ns: int) -> NodeState:
        restore = self._commands.restoring  # read first: once it is over, its ranks are seen or it has failed
        statuses = tuple(rank.status() for rank in self.ranks.all)
        gpus = tuple(self._parts.machine.identities)
        return NodeState(
            restoring=restore.attempt if restore else -1,
            attempt=self.ranks.attempt,
            ranks=statuses,
            activity=self._activity.read(statuses, time.perf_counter_ns()),
            held=self._parts.checkpoints.held(),
            stored_attempt=self._parts.checkpoints.stored_attempt,
            hardware=self._parts.machine.signs(now_ns),
            gpus=gpus if gpus != self._greeted_gpus else (),
            gauges={**self._parts.recorder.gauges(), **self._commands.loading.gauges()},
            loops=(self.link.loop, self.zygote.loop, *self._parts.loops()),
        )

    def _greeting(self) -> Sequence[Hello | RankExit]:
        restore = self._commands.restoring
        identity, ranks = self.identity, () if restore else self.ranks.all
        self._greeted_gpus = tuple(self._parts.machine.identities)
        hello = Hello(
            node=identity.node,
            address=identity.address,
            job=identity.job,
            pid=os.getpid(),
            agent_id=self._agent_id,
            nproc_per_node=identity.nproc_per_node,
            nnodes=identity.nnodes,
            min_nnodes=identity.min_nnodes,
            node_unit=identity.node_unit,
            node_unit_min=identity.node_unit_min,
            world_nodes=restore.node_count if restore else self._attempt.world_nodes if ranks else 0,
            max_restarts=identity.max_restarts,
            may_begin_anew=identity.may_begin_anew,
            peer_port=self._parts.checkpoints.peer_port,
            attempt=ranks[0].attempt if ranks else -1,
            restoring=restore.attempt if restore else -1,
            node_rank=restore.node_rank if restore else self._node_rank(ranks),
            ranks=tuple(r.rank for r in ranks),
            standby=identity.standby,
            version=__version__,
            switch=identity.switch,
            host=socket.gethostname(),
            tier=identity.tier,
            gpus=self._greeted_gpus,
            dump_lacks=self._parts.images.lacks,
            takes_world_part=True,
            takes_run=True,
            devices=identity.devices,
            replays=self._parts.replays.kind,
            gpu_count=visible_gpus(self._parts.environ),
            heartbeat_ns=int(self._parts.heartbeat_s * 1e9),
        )
        return (hello, *self._attempt.exits)

    def _node_rank(self, ranks: Sequence[Rank]) -> int:
        return ranks[0].rank // self.identity.nproc_per_node if ranks else -1

    def _on_command(self, command: Command, send_reply: SendReply) -> None:
        log.debug("command", type=type(command).__name__, id=command.id)
        self.was_asked_to_start |= isinstance(command, Start)
        self._commands.execute(command, send_reply)
