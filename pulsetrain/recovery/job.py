"""One job under the controller: its nodes, its phase, and the actions of the transition table."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from signal import SIGKILL, SIGTERM
from typing import Any

import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.protocol.messages import (
    DumpStacks,
    FirstStep,
    Held,
    HostStore,
    Leave,
    RankExit,
    RankStatus,
    Reply,
    Start,
    Stop,
    WorldNode,
)
from pulsetrain.recovery import checks, world
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.nodes import GONE, Node, NodeState
from pulsetrain.recovery.policy import EvictionBudget, Policy
from pulsetrain.recovery.record import Fault, Recovery
from pulsetrain.recovery.transitions import FAULTS, TERMINAL, Action, Event, Phase, step

log = structlog.get_logger()

USAGE_EXIT = 2
BUSY_NS = 10_000_000_000  # a rank whose last sign of work is younger than that works
STACKS_MARGIN_S = 1.0


class Job:
    """State and actions of one job. Facts come in through the methods; `run` carries out the table."""

    def __init__(
        self, name: str, *, nnodes: int, max_restarts: int, policy: Policy, journal: Journal, clock: Clock
    ) -> None:
        self.name = name
        self.nnodes = nnodes
        self.max_restarts = max_restarts
        self.phase = Phase.FORMING
        self.phase_since_ns = clock.wall_ns()
        self.attempt = -1
        self.started_ns = 0
        self.first_step_done = False
        self.world: tuple[WorldNode, ...] = ()
        self.nodes: dict[str, Node] = {}
        self.exits: list[RankExit] = []
        self.history: list[dict[str, Any]] = []
        self.recovery: Recovery | None = None
        self.failure = ""
        self.exit_code = 0
        self._policy, self._journal, self._clock = policy, journal, clock
        self._budget = EvictionBudget(policy)
        self._events: asyncio.Queue[tuple[Event, Fault | None]] = asyncio.Queue()
        self._ids = itertools.count(1)
        self._first_steps: dict[str, FirstStep] = {}
        self._failed: dict[str, str] = {}
        self._launched = False
        self._restarts = 0
        self._unrestorable: set[tuple[int, int]] = set()  # (rank, step); until an attempt trains again
        self._idle_attempts = 0
        self._stop_sent_ns = 0
        self._actions: Mapping[Action, Callable[[], Awaitable[None]]] = {
            Action.SUSPEND: self._suspend,
            Action.CHECK: self._check,
            Action.REPLACE: self._replace,
            Action.LAUNCH: self._launch,
            Action.ASK_FOR_NODES: self._ask_for_nodes,
            Action.DISMISS: self._dismiss,
        }

    # -- facts --------------------------------------------------------------------------------------------

    def post(self, event: Event, fault: Fault | None = None) -> None:
        """Queue an event for the table."""
        self._events.put_nowait((event, fault))

    def report_fault(self, fault: Fault) -> None:
        """A fault of the present attempt; in observe-only mode it is written down instead of acted on."""
        if self._policy.observe_only and fault.actor == "controller":
            self._write(
                "would", {"event": fault.event, "reason": fault.reason}, node=fault.node, rank=fault.rank
            )
            return
        if self.recovery is not None and fault.event is Event.NODE_LOST:
            self.recovery.blame(fault)
        self.post(fault.event, fault)

    def rank_exited(self, exit_: RankExit) -> None:
        """An agent says that a rank ended; exits that our own stop caused are not faults."""
        if exit_.attempt != self.attempt:
            return
        if self.phase is Phase.SUSPENDING and exit_.code not in (-SIGTERM, -SIGKILL):
            self.exits.append(exit_)
        if self.phase not in (Phase.STARTING, Phase.RUNNING):
            return
        self.exits.append(exit_)
        if exit_.code == 0:
            done = {e.rank for e in self.exits if e.code == 0}
            if len(done) == self.world_size:
                self.post(Event.ALL_DONE)
            return
        detail = {"code": exit_.code, "pid": exit_.pid, "last_lines": exit_.last_lines[-5:]}
        self._write("rank_exit", detail, node=exit_.node, rank=exit_.rank, actor="agent")
        self.report_fault(self._exit_fault(exit_))

    def first_step(self, report: FirstStep) -> None:
        """A node completed its first step; the last of them ends the recovery."""
        if report.attempt != self.attempt:
            return
        self._first_steps[report.node] = report
        self._note_first_step()

    def note_stepless(self) -> None:
        """A script that never says `step` is under way once all its ranks have worked for a while."""
        if self.phase is not Phase.RUNNING or self.first_step_done or not self._launched:
            return
        ran_s = (self._clock.wall_ns() - self.started_ns) / 1e9
        ranks = self.statuses()
        if ran_s < self._policy.stepless_s or len(ranks) < self.world_size:
            return
        if all(r.last_step < 0 and r.progress > 0 and r.progress_age_ns < BUSY_NS for r in ranks):
            self._under_way()

    def _note_first_step(self) -> None:
        """Once every launch was answered and every node has stepped, the attempt is under way."""
        all_stepped = {p.node for p in self.world} <= self._first_steps.keys()
        if self._launched and all_stepped and not self.first_step_done:
            self._under_way()

    def _under_way(self) -> None:
        self.first_step_done = True
        self._idle_attempts = 0
        self._unrestorable.clear()
        self._close_recovery()

    def adopt(self) -> None:
        """Nodes of a running attempt have reported to a new hub: take the job over where it is."""
        running = [n for n in self.nodes.values() if n.hello.attempt >= 0]
        self.attempt = max(n.hello.attempt for n in running)
        hellos = {n.hello.node_rank: n.hello for n in running if n.hello.attempt == self.attempt}
        nproc = running[0].hello.nproc_per_node
        self.world = tuple(
            world.place(hellos[r], r) if r in hellos else world.unknown_place(r, nproc)
            for r in range(self.nnodes)
        )
        for node in running:
            node.state = NodeState.ACTIVE
        self.first_step_done = True
        self.started_ns = self._clock.wall_ns()
        self._write("adopted", {"world": [p.node for p in self.world]})
        self.post(Event.ADOPTED)
        for place in self.world:
            if place.node not in self.nodes:
                self.report_fault(
                    self.fault(Event.NODE_LOST, "node_lost", "did not report to the new hub", place.node)
                )

    def fault(self, event: Event, cause: str, reason: str, node: str = "", **more: Any) -> Fault:
        """A fault of the present attempt, detected now; `more` are fields of `Fault`."""
        now = self._clock.wall_ns()
        times = {"onset_ns": now, "detected_ns": now} | more
        return Fault(event=event, attempt=self.attempt, cause=cause, reason=reason, node=node, **times)

    # -- what is known ------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        return sum(p.nproc for p in self.world)

    @property
    def last_step(self) -> int:
        """The newest step that any rank of this attempt completed; -1: none."""
        return max((s.last_step for s in self.statuses()), default=-1)

    def statuses(self) -> list[RankStatus]:
        """The last status of every rank of the present attempt, lost nodes included."""
        beats = (self.nodes[p.node].heartbeat for p in self.world if p.node in self.nodes)
        return [s for beat in beats if beat is not None and beat.attempt == self.attempt for s in beat.ranks]

    def active(self) -> list[Node]:
        """Nodes of the present world that can be spoken to."""
        return [self.nodes[p.node] for p in self.world if p.node in self.nodes and self.nodes[p.node].usable]

    def standbys(self) -> list[Node]:
        """Nodes that could take a place."""
        return [n for n in self.nodes.values() if n.usable and n.state is NodeState.STANDBY]

    def held(self, without: str = "") -> dict[str, tuple[Held, ...]]:
        """What each reachable node could restore, by its last heartbeat; `without` leaves one node out."""
        return {
            n.name: n.heartbeat.held
            for n in self.nodes.values()
            if n.usable and n.heartbeat is not None and n.name != without
        }

    def enough(self) -> bool:
        """Whether the healthy nodes suffice for the world; declared standbys do not help to form one."""
        healthy = [n for n in self.active() if n.name not in self._failed]
        forming = self.phase is Phase.FORMING
        spare = [
            n for n in self.standbys() if n.name not in self._failed and not (forming and n.hello.standby)
        ]
        return len(healthy) + len(spare) >= self.nnodes

    async def read_stacks(self, timeout_s: float, *, first_only: bool = False) -> list[Reply]:
        """Ask every node of the world where its ranks' code stands; one reply a node that is connected."""
        nodes = [n for n in self.active() if n.connected]
        patience_s = timeout_s + STACKS_MARGIN_S
        return await asyncio.gather(
            *(
                self._ask(
                    n, DumpStacks(id=self._id(), timeout_s=timeout_s, first_only=first_only), patience_s
                )
                for n in nodes
            )
        )

    # -- the loop -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take events one by one until the job has ended."""
        while self.phase not in TERMINAL:
            event, fault = await self._events.get()
            if fault is not None and fault.attempt != self.attempt:
                continue
            await self._apply(event, fault)

    async def _apply(self, event: Event, fault: Fault | None) -> None:
        transition = step(self.phase, event)
        if transition is None:
            log.debug("event_ignored", job=self.name, phase=self.phase, job_event=event)
            return
        log.info("transition", job=self.name, phase=self.phase, job_event=event, to=transition.phase)
        if event in FAULTS and fault is not None:
            self.recovery = Recovery(fault=fault, from_step=self.last_step)
        self.phase, self.phase_since_ns = transition.phase, self._clock.wall_ns()
        for action in transition.actions:
            await self._actions[action]()

    async def _suspend(self) -> None:
        """End every rank of the world; nodes that do not answer are waited for until they count as lost."""
        self._stop_sent_ns = self._clock.wall_ns()
        reason = self.recovery.fault.reason if self.recovery else "stopped"
        if not self.first_step_done:
            self._idle_attempts += 1
        nodes = [n for n in self.active() if n.connected]
        await asyncio.gather(*(self._ask(n, Stop(id=self._id(), reason=reason)) for n in nodes))
        while any(n.closed_s is not None and n.state not in GONE for n in self._world_nodes()):
            await asyncio.sleep(0.02)
        self.post(Event.STOPPED)

    async def _check(self) -> None:
        """Self-check on every node, pairwise all-gather where more than one process is in doubt."""
        if (why := self._hopeless()) != "":
            self.failure = why
            self.post(Event.EXHAUSTED)
            return
        fault = self.recovery.fault if self.recovery else None
        thorough = fault is not None and (fault.event is not Event.RANK_FAILED or self._restarts > 1)
        nodes = self.active() + self.standbys()
        report = await checks.run(nodes, self._policy, self._id, thorough=thorough)
        self._failed = dict(report.failed)
        if fault is not None and fault.event is Event.EVICT:
            self._failed[fault.node] = fault.reason
        self._write("self_check", report.detail())
        if self.recovery is not None:
            self.recovery.checked_ns = self._clock.wall_ns()
        self.post(Event.QUORUM if self.enough() else Event.SHORT)

    def _hopeless(self) -> str:
        """Why another attempt would be pointless; "" where it may help."""
        fault = self.recovery.fault if self.recovery else None
        if fault is None or fault.event is not Event.RANK_FAILED:
            return ""
        self._restarts += 1
        self.exit_code = int(fault.evidence.get("code", 1))
        if self.exit_code == USAGE_EXIT:
            return fault.reason
        if self._restarts > self.max_restarts:
            return f"{fault.reason}; {self.max_restarts} restarts are used up"
        if self._idle_attempts >= self._policy.no_progress_attempts:
            return f"{fault.reason}; {self._idle_attempts} attempts in a row completed no step"
        return ""

    async def _replace(self) -> None:
        """Evict nodes that failed a check, give free places to standbys."""
        for name, reason in self._failed.items():
            await self._evict(self.nodes[name], reason)
        self._failed.clear()
        standby = [n.hello for n in self.standbys()]
        if not self.world:
            self.world = world.form_world(standby, self.nnodes)
        else:
            healthy = [n.name for n in self.active()]
            before, self.world = self.world, world.replace_nodes(self.world, healthy, standby)
            self._note_promotions(before)
        for place in self.world:
            if place.node in self.nodes and self.nodes[place.node].usable:
                self.nodes[place.node].state = NodeState.ACTIVE
        if self.recovery is not None:
            self.recovery.replaced_ns = self._clock.wall_ns()

    def _note_promotions(self, before: Iterable[WorldNode]) -> None:
        old = {p.node_rank: p.node for p in before}
        for place in self.world:
            if old.get(place.node_rank) not in (None, place.node):
                detail = {"node_rank": place.node_rank, "replaces": old[place.node_rank]}
                self._write("standby_promoted", detail, node=place.node)

    async def _evict(self, node: Node, reason: str) -> None:
        fault = self.recovery.fault if self.recovery else None
        by_hand = fault is not None and fault.event is Event.EVICT and fault.node == node.name
        known = [n for n in self.nodes.values() if n.state not in GONE]
        refusal = self._budget.refusal(
            now_s=self._clock.monotonic_s(), known=len(known), healthy=len(known) - len(self._failed)
        )
        if refusal and not by_hand:
            self._write("eviction_refused", {"reason": reason, "why_not": refusal}, node=node.name)
            return
        if not by_hand:
            self._budget.spend(self._clock.monotonic_s())
        await self.dismiss_node(node, reason, actor=fault.actor if by_hand and fault else "controller")

    async def dismiss_node(self, node: Node, reason: str, actor: str) -> None:
        """Send one node away for good and write down who wanted it and why."""
        node.state, node.reason = NodeState.EVICTED, reason
        self._write("evict", {"reason": reason, "dry_run": False}, node=node.name, actor=actor)
        await self._ask(node, Leave(id=self._id(), reason=f"evicted: {reason}", exit_code=1))

    async def clear_node(self, node: Node) -> None:
        """End ranks that a node kept running while it counted as lost; it is a standby from now on."""
        await self._ask(node, Stop(id=self._id(), reason="its place was given to another node"))

    async def _launch(self) -> None:
        """Start the next attempt on the present world from the newest step that all ranks can reach."""
        self.attempt += 1
        self.exits, self._first_steps, self.first_step_done, self._launched = [], {}, False, False
        self.world = world.refresh(self.world, {n.name: n.hello for n in self.active()})
        plan = world.plan_restore(self.world, self.held(), self._unrestorable)
        host = self.world[0]
        store = await self._ask(self.nodes[host.node], HostStore(id=self._id(), job=self.name))
        detail = {
            "world": [p.node for p in self.world],
            "restore_step": plan.step,
            "sources": {str(r): s for r, s in plan.sources.items()},
        }
        self._write("attempt_started", detail)
        self.started_ns = self._clock.wall_ns()
        if store.error:
            self._start_failed(host.node, store.error)
            return
        replies = await asyncio.gather(
            *(self._start(place, plan, host.address, int(store.data["port"])) for place in self.world)
        )
        failed = next((r for r in replies if r.error), None)
        self._unrestorable |= {tuple(r.data["unrestorable"]) for r in replies if "unrestorable" in r.data}
        if failed is not None:
            self._start_failed(failed.node, failed.error)
            return
        self._note_launch(plan.step, replies)
        self.post(Event.STARTED)
        self._note_first_step()

    async def _start(self, place: WorldNode, plan: world.RestorePlan, address: str, port: int) -> Reply:
        command = Start(
            id=self._id(),
            job=self.name,
            attempt=self.attempt,
            node_rank=place.node_rank,
            world=self.world,
            store_address=address,
            store_port=port,
            restore_step=plan.step,
            sources={str(r): plan.sources[r] for r in place.ranks if r in plan.sources},
        )
        return await self._ask(self.nodes[place.node], command, self._policy.start_timeout_s)

    def _note_launch(self, step_: int, replies: Iterable[Reply]) -> None:
        self._launched = True
        if self.recovery is None:
            return
        loads = [int(ns) for reply in replies for ns in reply.data.get("load_ns", {}).values()]
        self.recovery.launched_ns = self._clock.wall_ns()
        self.recovery.fetch_ns = max(loads, default=0)
        self.recovery.resumed_step = step_

    def _start_failed(self, node: str, error: str) -> None:
        self.report_fault(self.fault(Event.START_FAILED, "start_failed", f"launch on {node}: {error}", node))

    async def _ask_for_nodes(self) -> None:
        missing = self.nnodes - len(self.active())
        self._write("waiting", {"missing_nodes": missing})

    async def _dismiss(self) -> None:
        """The job is over: every agent leaves with the job's exit code."""
        failed = self.phase is Phase.FAILED
        reason = f"job failed: {self.failure}" if failed else "job finished"
        code = (self.exit_code or 1) if failed else 0
        self._write("job_failed" if failed else "job_finished", {"reason": reason, "exit_code": code})
        nodes = [n for n in self.nodes.values() if n.usable]
        await asyncio.gather(
            *(self._ask(n, Leave(id=self._id(), reason=reason, exit_code=code)) for n in nodes)
        )
        for node in nodes:
            node.state = NodeState.LEFT

    # -- small things -------------------------------------------------------------------------------------

    def _close_recovery(self) -> None:
        if self.recovery is None:
            return
        detail = self.recovery.finish(self._clock.wall_ns(), self._first_steps.values())
        detail["attempt"] = self.attempt
        self.history.append(detail)
        self._write("recovery", detail, node=detail["node"], rank=detail["rank"])
        self.recovery = None

    def _exit_fault(self, exit_: RankExit) -> Fault:
        last = next((line for line in reversed(exit_.last_lines) if line.strip()), "")
        what = f"signal {-exit_.code}" if exit_.code < 0 else f"exit code {exit_.code}"
        reason = f"rank {exit_.rank} on {exit_.node} ended with {what}{': ' + last if last else ''}"
        return Fault(
            event=Event.RANK_FAILED,
            attempt=self.attempt,
            cause="crash",
            reason=reason,
            node=exit_.node,
            rank=exit_.rank,
            onset_ns=min(exit_.ts_ns, self._clock.wall_ns()),
            detected_ns=self._clock.wall_ns(),
            evidence={"code": exit_.code},
        )

    def _world_nodes(self) -> list[Node]:
        return [self.nodes[p.node] for p in self.world if p.node in self.nodes]

    async def _ask(self, node: Node, command: Any, timeout_s: float | None = None) -> Reply:
        return await node.ask(command, timeout_s or self._policy.reply_timeout_s)

    def _id(self) -> int:
        return next(self._ids)

    def _write(
        self,
        kind: str,
        detail: Mapping[str, Any],
        *,
        node: str = "",
        rank: int = -1,
        actor: str = "controller",
    ) -> None:
        self._journal.event(
            kind, job=self.name, attempt=self.attempt, detail=detail, node=node, rank=rank, actor=actor
        )
