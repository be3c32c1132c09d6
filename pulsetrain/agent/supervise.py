"""The node agent's main loop: supervises ranks and reports each second how the node is.

The main thread only watches, so a rank's end or a first step is reported at once, whatever disk, hub or
output do. Other threads drain rings to the spool, echo output, talk to the hub and carry out its commands.
"""

from __future__ import annotations

import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pulsetrain.agent.config import AgentConfig
from pulsetrain.agent.link import SendReply
from pulsetrain.agent.node import Node, NodeParts
from pulsetrain.agent.outcome import USAGE_EXIT, Outcome
from pulsetrain.agent.processes.rank import NodeIdentity, Rank
from pulsetrain.agent.standing_notice import StandingNotice
from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.supervisor import RESTART_DELAY_S, LoopMonitor
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import Leave, Leaving, RankExit, Reply

log = structlog.get_logger()

WARMUP_S = 0.02  # how often to look while an attempt starts: the resolution of its stages
STALE_AFTER_S = 10.0
KILL_GRACE_S, PERSISTING_GRACE_S = 30.0, 5.0
FAILED_GRACE_S = 5.0
"""for the ranks of a job that failed, of which many wait for one that is gone"""


@dataclass(frozen=True)
class _RankEnded:
    rank: Rank


@dataclass(frozen=True)
class _QuietExit:
    """A rank ended some time ago with status 2 and printed nothing."""

    report: RankExit


@dataclass(frozen=True)
class _LeaveReceived:
    command: Leave
    send_reply: SendReply


@dataclass(frozen=True)
class _SignalReceived:
    signum: int


@dataclass(frozen=True)
class _SignalForRanks:
    signum: int


class _Launched:
    """Ranks of a new attempt are running: from now on a first step is awaited."""


_Event = _RankEnded | _QuietExit | _LeaveReceived | _SignalReceived | _SignalForRanks | _Launched


class Agent:
    """One node's supervisor. `run` is its life, on the main thread."""

    def __init__(
        self,
        identity: NodeIdentity,
        config: AgentConfig,
        hub: HubAddress,
        parts: NodeParts,
        *,
        clock: Clock | None = None,
        keep_hub: Callable[[], bool] = lambda: True,
    ) -> None:
        """`keep_hub` starts the hub of the run again where it has ended; False: it will not return."""
        self._config, self._clock = config, clock or SystemClock()
        self._keep_hub = keep_hub
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._monitor = LoopMonitor(
            "supervise", stale_after_s=max(STALE_AFTER_S, 3 * config.heartbeat_s), clock=self._clock
        )
        self.node = Node(
            identity,
            hub,
            dataclasses.replace(parts, loops=lambda: (self._monitor.status(), *parts.loops())),
            on_rank_exit=lambda rank: self._events.put(_RankEnded(rank)),
            on_leave=lambda command, send_reply: self._events.put(_LeaveReceived(command, send_reply)),
            on_launched=lambda: self._events.put(_Launched()),
        )
        self._standing = StandingNotice(identity.job, parts.say, declared=identity.standby)
        self._heartbeat_due_s = 0.0
        self._alone_since_s: float | None = None

    def run(self) -> Outcome:
        """Serve the hub until the agent has to end.

        It ends when the hub sends it away, when a signal comes, and when every rank has finished or one has
        failed while the hub is away for long. Raises `AuthError` or `UsageError` where the hub refuses this
        agent or a preload fails.
        """
        self.node.link.start()
        self._await_imports()
        self.node.link.introduce()
        while True:
            self._raise_refusal()
            try:
                outcome = self.turn()
            except Exception as error:  # noqa: BLE001 - the edge of a loop: counted, logged, shown
                self._monitor.failed(error)
                time.sleep(RESTART_DELAY_S)
            else:
                self._monitor.completed()
                if outcome is not None:
                    return outcome

    def interrupt(self, signum: int) -> None:
        """A signal came. A signal handler may call this."""
        self._events.put(_SignalReceived(signum))

    def forward(self, signum: int) -> None:
        """A signal came that is for the ranks. A signal handler may call this."""
        self._events.put(_SignalForRanks(signum))

    @property
    def kill_grace_s(self) -> float:
        """How long ranks may take to end after a signal."""
        if self._config.kill_grace_s >= 0:
            return self._config.kill_grace_s
        return PERSISTING_GRACE_S if self.node.persists else KILL_GRACE_S

    def end(self, outcome: Outcome) -> None:
        """End as `outcome` says: tell the ranks, and keep what is saved, or not."""
        grace_s = self.kill_grace_s if outcome.exit_code == 128 + outcome.signal else FAILED_GRACE_S
        self.node.close(
            grace_s=min(grace_s, self.kill_grace_s) if outcome.signal else 0.0,
            signum=outcome.signal or signal.SIGTERM,
            persist_s=self._config.persist_at_end_s if outcome.persist else 0.0,
            finished=outcome.exit_code == 0,
        )

    def close(self) -> None:
        """Kill all ranks, the zygote and the connection, in that order."""
        self.node.close()

    def turn(self) -> Outcome | None:
        """Wait for the next event, and do what is due; the outcome where the agent ends.

        Without an event it waits for the next heartbeat, or `watch_s` where a first step is awaited.
        """
        outcome = self._handle_next(self._longest_wait_s())
        if outcome is not None:
            return outcome
        self.node.report_first_step()
        self.node.look_at_devices()
        now_s = self._clock.monotonic_s()
        if now_s >= self._heartbeat_due_s:
            self._heartbeat_due_s = now_s + self._config.heartbeat_s
            self.node.send_heartbeat()
        self._look_whether_it_stands(now_s)
        self.node.zygotes.replace_dead()
        return self._finish_alone(now_s, hub_returns=self._keep_hub())

    def _look_whether_it_stands(self, now_s: float) -> None:
        connected, launched = self.node.link.connected.is_set(), self.node.was_asked_to_start
        self._standing.look(now_s, connected=connected, launched=launched)

    def _longest_wait_s(self) -> float:
        if self.node.warming_up:
            return WARMUP_S
        heartbeat_s = max(0.0, self._heartbeat_due_s - self._clock.monotonic_s())
        return min(self._config.watch_s, heartbeat_s) if self.node.awaits_first_step else heartbeat_s

    def _await_imports(self) -> None:
        zygote = self.node.zygote
        deadline_s = self._clock.monotonic_s() + self._config.import_timeout_s
        while not zygote.ready:
            self._raise_refusal()
            if self._clock.monotonic_s() > deadline_s or zygote.dead:
                zygote.wait_ready(0)
            if not self._events.empty():  # a signal: the loop deals with it
                return
            time.sleep(0.02)
        zygote.wait_ready(0)

    def _raise_refusal(self) -> None:
        if self.node.link.refused.done():
            self.node.link.refused.result()

    def _handle_next(self, timeout_s: float) -> Outcome | None:
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        try:
            return self._handle(event)
        except Exception:
            self._events.put(event)  # an end that is never reported would look like a hang: try again
            raise

    def _handle(self, event: _Event) -> Outcome | None:
        match event:
            case _RankEnded(rank):
                self._rank_ended(rank)
            case _QuietExit(report):
                self.node.report_exit(report)
            case _LeaveReceived(command, send_reply):
                return self._leave(command, send_reply)
            case _SignalForRanks(signum):
                self.node.ranks.forward(signum)
            case _SignalReceived(signum):
                name = signal.Signals(signum).name
                reason = f"ended by {name}"
                self.node.link.report(Leaving(node=self.node.identity.node, reason=reason, signal=name))
                culprit = self.node.culprit
                return Outcome(
                    exit_code=128 + signum, reason=reason, culprit=culprit, persist=True, signal=signum
                )
        return None

    def _rank_ended(self, rank: Rank) -> None:
        report = rank.report(self.node.identity, self._clock.wall_ns())
        log.info("rank_ended", rank=rank.rank, pid=rank.pid, code=report.code)
        if report.code == USAGE_EXIT and not report.last_lines:
            timer = threading.Timer(self._config.quiet_usage_s, self._events.put, [_QuietExit(report)])
            timer.daemon = True
            timer.start()
        else:
            self.node.report_exit(report)

    def _finish_alone(self, now_s: float, *, hub_returns: bool) -> Outcome | None:
        """The outcome where nothing is left to do without the hub, which has been away for long since.

        Every rank has finished, or one has failed, which only the hub can mend.
        """
        codes = [rank.code for rank in self.node.ranks.all]
        failed, finished = any(codes), bool(codes) and all(code == 0 for code in codes)
        if self.node.link.connected.is_set() or not (failed or finished):
            self._alone_since_s = None
            return None
        self._alone_since_s = now_s if self._alone_since_s is None else self._alone_since_s
        grace_s = self._config.failed_grace_s if failed else self._config.finish_grace_s
        if hub_returns and now_s - self._alone_since_s <= grace_s:
            return None
        if finished:
            return Outcome(exit_code=0, reason="every rank ended with status 0; the hub is away")
        return self._fail_alone()

    def _fail_alone(self) -> Outcome | None:
        """The outcome of a failed rank. None until its end is known, see `quiet_usage_s`."""
        culprit = self.node.culprit
        if culprit is None:
            return None
        reason = "a rank failed; the hub is away"
        return Outcome(
            exit_code=culprit.code, reason=reason, culprit=culprit, persist=True, signal=signal.SIGTERM
        )

    def _leave(self, leave: Leave, send_reply: SendReply) -> Outcome:
        """Ranks of a job that failed may save something: they end after the reply, see `end`. Others now."""
        culprit = self.node.culprit
        error = "" if leave.persist else self.node.stop_ranks(0.0)
        send_reply(Reply(id=leave.id, node=self.node.identity.node, error=error))
        return Outcome(
            exit_code=leave.exit_code,
            reason=leave.reason,
            culprit=culprit,
            persist=leave.persist,
            signal=signal.SIGTERM if leave.persist else 0,
        )
