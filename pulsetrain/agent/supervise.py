"""The node agent: supervises ranks, obeys the hub, and says each second how the node is.

The main thread only watches: a rank's end or a first step is reported at once, whatever disk, hub or output
do. What the node could restore goes with each heartbeat; one precedes each reply to the hub, so that what it
decides then rests on the present. Draining rings to the spool, echoing output, talking to the hub and obeying
its commands have threads of their own.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from pulsetrain import __version__
from pulsetrain.agent import outcome
from pulsetrain.agent.commands import CheckpointService, Commands
from pulsetrain.agent.heartbeat import CpuMeter
from pulsetrain.agent.link import Answer, Link
from pulsetrain.agent.outcome import USAGE_EXIT, Outcome
from pulsetrain.agent.processes.ranks import NodeIdentity, Rank, Ranks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.warmup import Warmup
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.messages import (
    Command,
    Heartbeat,
    Held,
    Hello,
    Leave,
    RankExit,
    Reply,
    Start,
)

log = structlog.get_logger()

WARMUP_S = 0.02  # how often to look while an attempt starts: the resolution of its stages


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Configuration of an agent: table ``[agent]``, environment ``PULSETRAIN_AGENT_*``."""

    watch_s: float = 0.2
    """How often to look for first steps. A rank's end is noticed without looking."""
    drain_s: float = 0.5
    """How often rings are drained to the spool."""
    echo_s: float = 0.2
    """How often what ranks print is echoed."""
    heartbeat_s: float = 1.0
    """How often to report to the hub, and to sample the host."""
    ring_slots: int = 65536
    """Records that a rank may write between two drains; more are dropped and counted."""
    spool_bytes: int = 1 << 30
    """Size of the spool on disk; what does not fit is dropped and counted."""
    kill_grace_s: float = 5.0
    """How long ranks may take to end after SIGTERM when the agent itself is told to end."""
    finish_grace_s: float = 60.0
    """How long to wait for a hub that is away once every rank has ended with status 0."""
    quiet_usage_s: float = 0.7
    """A rank that ends with status 2 and says nothing is reported this much later: the one that says why is
    then heard first."""
    flush_s: float = 3.0
    """How long to go on shipping records at the end; what is left stays in the spool."""
    import_timeout_s: float = 180.0
    """How long the zygote may take to import torch and what was asked to be preloaded."""

    def __post_init__(self) -> None:
        for name in ("watch_s", "drain_s", "echo_s", "heartbeat_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")


class CheckpointKeeper(CheckpointService, Protocol):
    """What the agent needs of the node's checkpoint service."""

    @property
    def peer_port(self) -> int: ...
    def held(self) -> tuple[Held, ...]: ...


class Watcher(Protocol):
    """What records what the agent sees."""

    def gauges(self) -> Mapping[str, float]: ...
    def heartbeat(self, heartbeat: Heartbeat) -> None: ...
    def follow(self, ranks: Sequence[Rank]) -> None: ...
    def drain(self) -> None: ...


class Agent:
    """One node's supervisor. Everything it needs is handed in; `run` is its life, on the main thread.

    `watcher` is told of launches, stops and heartbeats, on whatever thread they happen.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        ranks: Callable[[Callable[[Rank], None]], Ranks],
        *,
        config: AgentConfig,
        nnodes: int,
        hub: tuple[str, str],
        keeper: CheckpointKeeper,
        zygote: Zygote,
        start_zygote: Callable[[], Zygote],
        watcher: Watcher,
        standby: bool = False,
    ) -> None:
        self.identity = identity
        self._config, self._nnodes, self._standby = config, nnodes, standby
        self._keeper, self._watcher, self._start_zygote = keeper, watcher, start_zygote
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.ranks = ranks(lambda rank: self._inbox.put(("exit", rank)))
        self.zygote = zygote
        self._link = Link(*hub, self._greeting, self._on_command)
        self._commands = Commands(self, keeper)
        self._exits: list[RankExit] = []
        self._last_exits: list[RankExit] = []
        self._warmup: Warmup | None = None
        self._seq = itertools.count()
        self._meter = CpuMeter()
        self._beat_lock = threading.Lock()

    # -- the main thread ----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Serve the hub until it sends this agent away, a signal comes, or the job ended without a hub to say
        so. Raises `AuthError` or `UsageError` where the hub refuses this agent or a preload fails."""
        self._link.start()
        self._await_imports()
        self._link.introduce()
        next_beat_s = time.monotonic()
        done_since_s = None
        while True:
            outcome = self._handle_next()
            if outcome is not None:
                return outcome
            now_s = time.monotonic()
            self._look_for_first_step()
            if now_s >= next_beat_s:
                self.beat()
                next_beat_s = now_s + self._config.heartbeat_s
            self._look_after_zygote()
            if self._link.refused.done():
                self._link.refused.result()
            done_since_s = (done_since_s or now_s) if self._finished_alone() else None
            if done_since_s is not None and now_s - done_since_s > self._config.finish_grace_s:
                return Outcome(exit_code=0, reason="every rank ended with status 0; the hub is away")

    def interrupt(self, signum: int) -> None:
        """A signal came; safe in a signal handler."""
        self._inbox.put(("signal", signum))

    def close(self, *, grace_s: float = 0.0) -> None:
        """End all ranks, the zygote and the connection, in that order."""
        try:
            self._commands.stop(grace_s)
        except PulsetrainError as error:
            log.warning("ranks_left", error=str(error))
        self.zygote.close()
        self.ranks.close()
        self._link.close()

    def _await_imports(self) -> None:
        deadline_s = time.monotonic() + self._config.import_timeout_s
        while not self.zygote.ready:
            if self._link.refused.done():
                self._link.refused.result()
            if time.monotonic() > deadline_s or self.zygote.dead:
                self.zygote.wait_ready(0)
            if not self._inbox.empty():  # a signal: the loop deals with it
                return
            time.sleep(0.02)
        self.zygote.wait_ready(0)

    def _handle_next(self) -> Outcome | None:
        """Wait for the next thing that happens, at most `watch_s`."""
        warmup = self._warmup
        warming = warmup is not None and warmup.fresh(time.time_ns())
        try:
            kind, what = self._inbox.get(timeout=WARMUP_S if warming else self._config.watch_s)
        except queue.Empty:
            return None
        match kind:
            case "exit":
                self._rank_ended(what)
            case "report":
                self._report_exit(what)
            case "leave":
                return self._left(*what)
            case "signal":
                name = signal.Signals(what).name
                return Outcome(exit_code=128 + what, reason=f"ended by {name}", culprit=self.culprit)
        return None

    def _rank_ended(self, rank: Rank) -> None:
        report = rank.report(self.identity, time.time_ns())
        log.info("rank_ended", rank=rank.rank, pid=rank.pid, code=report.code)
        if report.code == USAGE_EXIT and not report.last_lines:
            later = threading.Timer(self._config.quiet_usage_s, self._inbox.put, [("report", report)])
            later.daemon = True
            later.start()
        else:
            self._report_exit(report)

    def _report_exit(self, report: RankExit) -> None:
        if report.attempt != self.ranks.attempt:  # ended by us meanwhile
            self._last_exits.append(report)
            return
        self._exits.append(report)
        self.beat()
        self._link.report(report)

    def _look_for_first_step(self) -> None:
        warmup = self._warmup  # a stop on another thread may take it away meanwhile
        if warmup is None or warmup.reported:
            return
        now_ns = time.time_ns()
        statuses = {r.rank: r.status(now_ns) for r in self.ranks.all if r.attempt == warmup.attempt}
        first = warmup.observe(statuses, now_ns)
        if first is not None:
            warmup.reported = True
            self._link.report(first)

    def _look_after_zygote(self) -> None:
        """A zygote that died (its ranks have died with it, and were reported) is replaced."""
        if self.zygote.dead:
            log.error("zygote_died", pid=self.zygote.pid)
            self.zygote.close()
            self.zygote = self._start_zygote()

    def _finished_alone(self) -> bool:
        ranks = self.ranks.all
        return bool(ranks) and all(r.code == 0 for r in ranks) and not self._link.connected.is_set()

    def _left(self, leave: Leave, answer: Answer) -> Outcome:
        culprit = self.culprit
        self._commands.stop(0.0)
        answer(Reply(id=leave.id, node=self.identity.node))
        return Outcome(exit_code=leave.exit_code, reason=leave.reason, culprit=culprit)

    # -- any thread ---------------------------------------------------------------------------------------

    @property
    def culprit(self) -> RankExit | None:
        """The rank of this node to blame for the end of the present or the last attempt."""
        return outcome.culprit(self._exits or self._last_exits)

    def beat(self) -> None:
        """Send a heartbeat with the state as of now."""
        with self._beat_lock:
            now_ns = time.time_ns()
            heartbeat = Heartbeat(
                node=self.identity.node,
                seq=next(self._seq),
                ts_ns=now_ns,
                job=self.identity.job,
                attempt=self.ranks.attempt,
                ranks=tuple(rank.status(now_ns) for rank in self.ranks.all),
                held=self._keeper.held(),
                gauges={**self._watcher.gauges(), "agent_cpu_ratio": self._meter.ratio()},
            )
        self._link.beat(heartbeat)
        self._watcher.heartbeat(heartbeat)

    def launched(self, start: Start, began_ns: int) -> None:
        """Ranks of a new attempt are running."""
        self._last_exits, self._exits = self._exits, []
        self._warmup = Warmup(
            node=self.identity.node,
            attempt=start.attempt,
            restore_step=start.restore_step,
            began_ns=began_ns,
        )
        self._watcher.follow(self.ranks.all)

    def stopped(self) -> None:
        """No rank is left, because we were told so; their rings are about to go."""
        self._watcher.drain()
        self._watcher.follow(())
        self._last_exits, self._exits = self._exits or self._last_exits, []
        self._warmup = None

    def leave(self, command: Leave, answer: Answer) -> None:
        """The hub sends this agent away."""
        self._inbox.put(("leave", (command, answer)))

    def _greeting(self) -> Sequence[Hello | RankExit]:
        ranks = self.ranks.all
        hello = Hello(
            node=self.identity.node,
            address=self.identity.address,
            job=self.identity.job,
            pid=os.getpid(),
            nproc_per_node=self.identity.nproc_per_node,
            nnodes=self._nnodes,
            max_restarts=self.identity.max_restarts,
            peer_port=self._keeper.peer_port,
            attempt=self.ranks.attempt,
            node_rank=ranks[0].rank // self.identity.nproc_per_node if ranks else -1,
            ranks=tuple(r.rank for r in ranks),
            standby=self._standby,
            version=__version__,
        )
        return (hello, *self._exits)

    def _on_command(self, command: Command, answer: Answer) -> None:
        log.debug("command", type=type(command).__name__, id=command.id)
        self._commands.obey(command, answer)
